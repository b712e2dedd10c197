// real.mjs URL - the official client libraries against a real model, of random weights: what is constrained comes out
// right all the same, and what is reused is counted.  tests/e2e/sdk_e2e_test.c starts the server.
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateObject, streamObject, generateText, streamText, tool, jsonSchema, stepCountIs } from "ai";
import { anthropic, compatible, openai, prove } from "./claims.mjs";

const hi = [{ role: "user", content: "Where, and for how many days?" }];
const schema = {
  type: "object",
  properties: {
    city: { type: "string", maxLength: 8 },
    days: { type: "integer", minimum: 1, maximum: 14 },
    scale: { type: "string", enum: ["C", "F"] },
  },
  required: ["city", "days", "scale"],
  additionalProperties: false,
};
const fn = { name: "weather", description: "the weather", parameters: schema };
const tools = [{ type: "function", function: fn }];

function checkAnswer(o) {
  assert.deepEqual(Object.keys(o), ["city", "days", "scale"]);
  assert.equal(typeof o.city, "string");
  assert.ok(Number.isInteger(o.days) && o.days >= 1 && o.days <= 14);
  assert.ok(["C", "F"].includes(o.scale));
}

const claims = {
  async "openai: a chat that follows a schema"() {
    const r = await openai.chat.completions.parse({
      model: "tiny",
      messages: hi,
      response_format: { type: "json_schema", json_schema: { name: "answer", strict: true, schema } },
    });
    checkAnswer(JSON.parse(r.choices[0].message.content));
  },

  async "openai: JSON mode"() {
    const r = await openai.chat.completions.create({
      model: "tiny",
      messages: hi,
      max_tokens: 300,
      response_format: { type: "json_object" },
    });
    if (r.choices[0].finish_reason === "stop") assert.equal(typeof JSON.parse(r.choices[0].message.content), "object");
  },

  async "openai: a call that has to come, streamed"() {
    const stream = openai.chat.completions.stream({
      model: "tiny",
      messages: hi,
      tools,
      tool_choice: { type: "function", function: { name: "weather" } },
      parallel_tool_calls: false,
    });
    let pieces = 0;
    stream.on("tool_calls.function.arguments.delta", () => pieces++);
    const r = await stream.finalChatCompletion();
    assert.equal(r.choices[0].finish_reason, "tool_calls");
    assert.equal(r.choices[0].message.tool_calls.length, 1);
    checkAnswer(JSON.parse(r.choices[0].message.tool_calls[0].function.arguments));
    assert.ok(pieces >= 1);
  },

  async "openai: a response that follows a schema, streamed"() {
    const stream = openai.responses.stream({
      model: "tiny",
      input: "Where, and for how many days?",
      text: { format: { type: "json_schema", name: "answer", strict: true, schema } },
    });
    let text = "";
    for await (const e of stream) if (e.type === "response.output_text.delta") text += e.delta;
    const r = await stream.finalResponse();
    assert.equal(r.output_text, text);
    checkAnswer(JSON.parse(text));
  },

  async "openai: a tool loop reuses all but what is new"() {
    const messages = [...hi];
    let before = 0;
    for (let step = 0; step < 5; step++) {
      const r = await openai.chat.completions.create({ model: "tiny", messages, tools, tool_choice: "required",
                                                       parallel_tool_calls: true, max_tokens: 200 });
      const u = r.usage;
      if (step) assert.ok(u.prompt_tokens - u.prompt_tokens_details.cached_tokens <= u.prompt_tokens - before + 16);
      if (r.choices[0].finish_reason !== "tool_calls") return; // more calls than fit: nothing to go on with
      before = u.total_tokens;
      messages.push(r.choices[0].message);
      for (const c of r.choices[0].message.tool_calls)
        messages.push({ role: "tool", tool_call_id: c.id, content: "rain" });
    }
  },

  async "openai: what was evaluated before a hang-up is reused"() {
    const messages = [{ role: "user", content: "A question. ".repeat(60) }];
    const s = await openai.chat.completions.create({ model: "tiny", messages, stream: true, max_tokens: 400,
                                                     logit_bias: { "<|im_end|>": -100 } });
    for await (const _ of s) break;
    const r = await openai.chat.completions.create({ model: "tiny", messages, max_tokens: 1 });
    assert.ok(r.usage.prompt_tokens_details.cached_tokens > 200);
  },

  async "openai: a schema that cannot be followed is refused by name"() {
    await assert.rejects(
      openai.chat.completions.create({
        model: "tiny",
        messages: hi,
        response_format: { type: "json_schema",
                           json_schema: { name: "x", schema: { type: "array", uniqueItems: true } } },
      }),
      (e) => e instanceof OpenAI.BadRequestError && /uniqueItems/.test(e.message),
    );
  },

  async "anthropic: a call that has to come, streamed"() {
    const stream = anthropic.messages.stream({
      model: "tiny",
      max_tokens: 300,
      messages: hi,
      tools: [{ name: "weather", description: "the weather", input_schema: schema }],
      tool_choice: { type: "tool", name: "weather", disable_parallel_tool_use: true },
    });
    let json = "";
    stream.on("inputJson", (part) => (json += part));
    const r = await stream.finalMessage();
    const use = r.content.find((b) => b.type === "tool_use");
    checkAnswer(use.input);
    assert.deepEqual(JSON.parse(json), use.input);
    assert.equal(r.stop_reason, "tool_use");
  },

  async "anthropic: a message breaks off when it is told to"() {
    const stream = anthropic.messages.stream({ model: "tiny", max_tokens: 400, messages: hi });
    await new Promise((done) => stream.once("streamEvent", done));
    stream.abort();
    await assert.rejects(stream.finalMessage(), Anthropic.APIUserAbortError);
  },

  async "ai sdk: objects, whole and streamed"() {
    const ask = { model: compatible("tiny"), schema: jsonSchema(schema), messages: hi, maxRetries: 0 };
    checkAnswer((await generateObject(ask)).object);
    const s = streamObject(ask);
    let parts = 0;
    for await (const _ of s.partialObjectStream) parts++;
    checkAnswer(await s.object);
    assert.ok(parts > 0);
  },

  async "ai sdk: a tool that has to be called, streamed"() {
    let asked;
    const s = streamText({
      model: compatible("tiny"),
      messages: hi,
      maxRetries: 0,
      toolChoice: { type: "tool", toolName: "weather" },
      providerOptions: { holdfast: { parallel_tool_calls: false } },
      stopWhen: stepCountIs(1),
      tools: {
        weather: tool({ description: "d", inputSchema: jsonSchema(schema), execute: async (i) => ((asked = i), "rain") }),
      },
    });
    await s.consumeStream();
    checkAnswer(asked);
  },

  async "ai sdk: text ends where a stop string begins"() {
    const r = await generateText({ model: compatible("tiny"), messages: hi, maxOutputTokens: 20, maxRetries: 0,
                                   stopSequences: ["e"] });
    assert.ok(!r.text.includes("e"));
  },
};

await prove(claims);
