// sdk.mjs URL - drive a holdfast server with the official client libraries.
//
// The server behind URL (src/server/sdk_test.c) says the same to everybody: with seed 9100 "plain text", else some
// reasoning, "I will look." and a call of the tool weather.  Exits 1 when a claim does not hold.
import assert from "node:assert/strict";
import OpenAI from "openai";
import Anthropic from "@anthropic-ai/sdk";
import { generateText, streamText, tool, jsonSchema, stepCountIs } from "ai";
import { anthropic, compatible, openai, prove } from "./claims.mjs";

const plain = 9100;
const weather = {
  name: "weather",
  description: "the weather",
  schema: { type: "object", properties: { city: { type: "string" }, days: { type: "integer" } } },
};
const hi = [{ role: "user", content: "hi" }];
const tools = [
  {
    type: "function",
    function: { name: weather.name, description: weather.description, parameters: weather.schema },
  },
];

const claims = {
  async "openai: models are listed"() {
    const ids = [];
    for await (const m of openai.models.list()) ids.push(m.id);
    assert.deepEqual(ids, ["tiny"]);
    assert.equal((await openai.models.retrieve("tiny")).id, "tiny");
  },

  async "openai: a chat"() {
    const r = await openai.chat.completions.create({ model: "tiny", messages: hi, seed: plain });
    assert.equal(r.choices[0].message.content, "plain text");
    assert.equal(r.choices[0].finish_reason, "stop");
    assert.equal(r.usage.prompt_tokens_details.cached_tokens, 2);
  },

  async "openai: a chat with a tool call"() {
    const r = await openai.chat.completions.create({ model: "tiny", messages: hi, tools });
    const call = r.choices[0].message.tool_calls[0];
    assert.equal(call.function.name, "weather");
    assert.deepEqual(JSON.parse(call.function.arguments), { city: "Oslo", days: 3 });
    assert.equal(r.choices[0].finish_reason, "tool_calls");
    const again = await openai.chat.completions.create({
      model: "tiny",
      messages: [...hi, r.choices[0].message, { role: "tool", tool_call_id: call.id, content: "rain" }],
      tools,
      seed: plain,
    });
    assert.equal(again.choices[0].message.content, "plain text");
  },

  async "openai: the stream helper puts a chat together"() {
    const stream = openai.chat.completions.stream({
      model: "tiny",
      messages: hi,
      tools,
      stream_options: { include_usage: true },
    });
    let deltas = 0;
    stream.on("content.delta", () => deltas++);
    const r = await stream.finalChatCompletion();
    assert.ok(deltas > 1);
    assert.equal(r.choices[0].message.content, "I will look.");
    assert.equal(r.choices[0].message.tool_calls[0].function.name, "weather");
    assert.equal(r.choices[0].finish_reason, "tool_calls");
    assert.ok(r.usage.completion_tokens > 5);
  },

  async "openai: log-probabilities"() {
    const r = await openai.chat.completions.create({
      model: "tiny",
      messages: hi,
      seed: plain,
      logprobs: true,
      top_logprobs: 2,
    });
    assert.equal(r.choices[0].logprobs.content[0].top_logprobs.length, 2);
  },

  async "openai: completions, whole and streamed"() {
    const ask = { model: "tiny", prompt: "one two three" };
    const whole = await openai.completions.create(ask);
    assert.equal(whole.object, "text_completion");
    let text = "";
    for await (const c of await openai.completions.create({ ...ask, stream: true }))
      text += c.choices[0].text;
    assert.equal(text, whole.choices[0].text);
  },

  async "openai: a response"() {
    const r = await openai.responses.create({ model: "tiny", input: "hi", seed: plain });
    assert.equal(r.output_text, "plain text");
    assert.equal(r.status, "completed");
    assert.equal(r.usage.input_tokens_details.cached_tokens, 2);
  },

  async "openai: a response with a function call, streamed"() {
    const fn = { type: "function", name: weather.name, parameters: weather.schema, strict: false };
    const stream = openai.responses.stream({ model: "tiny", input: "hi", tools: [fn] });
    const seen = new Set();
    for await (const e of stream) seen.add(e.type);
    const r = await stream.finalResponse();
    assert.equal(r.output_text, "I will look.");
    const call = r.output.find((o) => o.type === "function_call");
    assert.deepEqual(JSON.parse(call.arguments), { city: "Oslo", days: 3 });
    assert.ok(seen.has("response.output_text.delta") && seen.has("response.completed"));
    const next = await openai.responses.create({
      model: "tiny",
      input: [{ role: "user", content: "hi" }, ...r.output,
              { type: "function_call_output", call_id: call.call_id, output: "rain" }],
      tools: [fn],
      seed: plain,
    });
    assert.equal(next.output_text, "plain text");
  },

  async "openai: errors are of their class and name the field"() {
    await assert.rejects(
      openai.chat.completions.create({ model: "tiny", messages: hi, temperature: "hot" }),
      (e) => e instanceof OpenAI.BadRequestError && e.param === "temperature",
    );
    await assert.rejects(
      openai.chat.completions.create({ model: "tiny", messages: [{ role: "user", content: "Q ".repeat(3000) }] }),
      (e) => e instanceof OpenAI.BadRequestError && e.type === "exceed_context_size_error",
    );
    await assert.rejects(openai.models.retrieve("other"), OpenAI.NotFoundError);
    await assert.rejects(
      (async () => {
        const s = await openai.chat.completions.create({ model: "tiny", messages: hi, stream: true, seed: 9001 });
        for await (const _ of s);
      })(),
      OpenAI.APIError,
    );
  },

  async "openai: a stream that is broken off"() {
    const s = await openai.chat.completions.create({ model: "tiny", messages: hi, stream: true });
    for await (const _ of s) break; // hangs up
  },

  async "anthropic: a message"() {
    const r = await anthropic.messages.create({ model: "tiny", max_tokens: 200, messages: hi, seed: plain });
    assert.equal(r.content.find((b) => b.type === "text").text, "plain text");
    assert.equal(r.stop_reason, "end_turn");
    assert.equal(r.usage.cache_read_input_tokens, 2);
  },

  async "anthropic: the stream helper puts a message together"() {
    const at = [{ name: weather.name, description: weather.description, input_schema: weather.schema }];
    const stream = anthropic.messages.stream({ model: "tiny", max_tokens: 500, messages: hi, tools: at });
    let text = "";
    stream.on("text", (t) => (text += t));
    const r = await stream.finalMessage();
    assert.equal(text, "I will look.");
    assert.deepEqual(r.content.map((b) => b.type), ["thinking", "text", "tool_use"]);
    assert.deepEqual(r.content[2].input, { city: "Oslo", days: 3 });
    assert.equal(r.stop_reason, "tool_use");
    const again = await anthropic.messages.create({
      model: "tiny",
      max_tokens: 200,
      tools: at,
      seed: plain,
      messages: [...hi, { role: "assistant", content: r.content },
                 { role: "user", content: [{ type: "tool_result", tool_use_id: r.content[2].id, content: "rain" }] }],
    });
    assert.equal(again.content.at(-1).text, "plain text");
  },

  async "anthropic: tokens are counted"() {
    const r = await anthropic.messages.countTokens({ model: "tiny", messages: hi });
    assert.ok(r.input_tokens > 3);
  },

  async "anthropic: errors are of their class"() {
    await assert.rejects(
      anthropic.messages.create({ model: "tiny", max_tokens: 9, messages: [] }),
      (e) => e instanceof Anthropic.BadRequestError && /messages/.test(e.message),
    );
    await assert.rejects(
      anthropic.messages.create({ model: "tiny", max_tokens: 9, messages: [{ role: "user", content: "Q ".repeat(3000) }] }),
      (e) => e instanceof Anthropic.BadRequestError && /prompt is too long: \d+ tokens > \d+ maximum/.test(e.message),
    );
    await assert.rejects(
      anthropic.messages.stream({ model: "tiny", max_tokens: 99, messages: hi, seed: 9001 }).finalMessage(),
      Anthropic.APIError,
    );
  },

  async "ai sdk: text, reasoning and a tool loop"() {
    const model = compatible("tiny");
    const whole = await generateText({ model, messages: hi, seed: plain, maxRetries: 0 });
    assert.equal(whole.text, "plain text");
    let asked;
    const stream = streamText({
      model,
      messages: hi,
      maxRetries: 0,
      stopWhen: stepCountIs(1),
      tools: {
        weather: tool({
          description: weather.description,
          inputSchema: jsonSchema(weather.schema),
          execute: async (input) => ((asked = input), "rain"),
        }),
      },
    });
    let text = "";
    for await (const t of stream.textStream) text += t;
    assert.equal(text, "I will look.");
    assert.deepEqual(asked, { city: "Oslo", days: 3 });
    assert.match(await stream.reasoningText, /let me see/);
  },
};

await prove(claims);
