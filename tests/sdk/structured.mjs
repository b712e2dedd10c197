// Structured output through the client libraries, against a server whose model says noise:
//     node structured.mjs http://127.0.0.1:PORT
// Exits 1 when a claim does not hold.
import assert from "node:assert/strict";
import OpenAI from "openai";
import { generateObject, generateText, jsonSchema, tool } from "ai";
import { anthropic, compatible, openai, prove } from "./claims.mjs";

const model = "tiny";
const messages = [{ role: "user", content: "Plan it." }];
const schema = {
  type: "object",
  properties: {
    title: { type: "string", maxLength: 12 },
    steps: { type: "array", items: { enum: ["go", "stay"] }, minItems: 1, maxItems: 3 },
    days: { type: "integer", minimum: 1, maximum: 9 },
  },
  required: ["title", "steps", "days"],
  additionalProperties: false,
};

function assertFits(v) {
  assert.deepEqual(Object.keys(v), ["title", "steps", "days"]);
  assert.ok([...v.title].length <= 12);
  assert.ok(v.steps.length >= 1 && v.steps.length <= 3 && v.steps.every((s) => s === "go" || s === "stay"));
  assert.ok(Number.isInteger(v.days) && v.days >= 1 && v.days <= 9);
}

const claims = {
  async "openai: a parsed chat"() {
    const r = await openai.chat.completions.parse({
      model,
      messages,
      response_format: { type: "json_schema", json_schema: { name: "plan", strict: true, schema } },
    });
    assertFits(r.choices[0].message.parsed);
  },

  async "openai: a streamed chat"() {
    const stream = openai.chat.completions.stream({
      model,
      messages,
      response_format: { type: "json_schema", json_schema: { name: "plan", strict: true, schema } },
    });
    assertFits(JSON.parse((await stream.finalChatCompletion()).choices[0].message.content));
  },

  async "openai: a required call of a strict tool"() {
    const r = await openai.chat.completions.parse({
      model,
      messages,
      tools: [{ type: "function", function: { name: "plan", strict: true, parameters: schema } }],
      tool_choice: "required",
      parallel_tool_calls: false,
    });
    assertFits(r.choices[0].message.tool_calls[0].function.parsed_arguments);
  },

  async "openai: a parsed response"() {
    const r = await openai.responses.parse({
      model,
      input: "Plan it.",
      text: { format: { type: "json_schema", name: "plan", strict: true, schema } },
    });
    assertFits(r.output_parsed);
  },

  async "anthropic: a forced tool"() {
    const r = await anthropic.messages.create({
      model,
      max_tokens: 1000,
      messages,
      tools: [{ name: "plan", input_schema: schema }],
      tool_choice: { type: "tool", name: "plan", disable_parallel_tool_use: true },
    });
    assertFits(r.content.find((b) => b.type === "tool_use").input);
    assert.equal(r.stop_reason, "tool_use");
  },

  async "ai sdk: an object"() {
    const r = await generateObject({ model: compatible(model), messages, schema: jsonSchema(schema), maxRetries: 0 });
    assertFits(r.object);
  },

  async "ai sdk: a required call"() {
    const r = await generateText({
      model: compatible(model),
      messages,
      tools: { plan: tool({ inputSchema: jsonSchema(schema) }) },
      toolChoice: "required",
      maxRetries: 0,
    });
    assertFits(r.toolCalls[0].input);
  },

  async "openai: a schema that cannot be kept is refused"() {
    await assert.rejects(
      openai.chat.completions.create({
        model,
        messages,
        response_format: { type: "json_schema", json_schema: { name: "n", schema: { not: {} } } },
      }),
      (e) => e instanceof OpenAI.BadRequestError && /"not" is not supported/.test(e.message),
    );
  },
};

await prove(claims);
