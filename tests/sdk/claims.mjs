// claims.mjs - what the client library tests share: the clients of the server at argv[2], and proving claims.
import process from "node:process";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";

const url = process.argv[2];
export const openai = new OpenAI({ baseURL: `${url}/v1`, apiKey: "key", maxRetries: 0 });
export const anthropic = new Anthropic({ baseURL: url, apiKey: "key", maxRetries: 0 });
export const compatible = createOpenAICompatible({
  name: "holdfast",
  baseURL: `${url}/v1`,
  apiKey: "key",
  supportsStructuredOutputs: true,
});

// claims: name -> async function that throws when it does not hold.  Exits 1 when one did not.
export async function prove(claims) {
  let failed = 0;
  for (const [claim, check] of Object.entries(claims)) {
    try {
      await check();
      console.log(`ok      ${claim}`);
    } catch (e) {
      failed++;
      console.log(`FAILED  ${claim}\n${e.stack ?? e}`);
    }
  }
  process.exit(failed ? 1 : 0);
}
