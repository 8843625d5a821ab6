// OpenAI's client, unchanged, against the base URL of an edge node or a cloud.
// Needs WEIR_TEST_URL (with /v1), WEIR_TEST_KEY and WEIR_TEST_MODEL.
import assert from "node:assert/strict";
import { test } from "node:test";
import OpenAI from "openai";

const { WEIR_TEST_URL: baseURL, WEIR_TEST_KEY: apiKey, WEIR_TEST_MODEL: model } = process.env;
assert.ok(baseURL && apiKey && model, "WEIR_TEST_URL, WEIR_TEST_KEY and WEIR_TEST_MODEL must be set");
const client = new OpenAI({ baseURL, apiKey });
const messages = [{ role: "user", content: "turn on the kitchen light" }];
const answer = '{"do":"light.on","room":"kitchen"}';

test("chat", async () => {
  const r = await client.chat.completions.create({ model, messages, temperature: 0 });
  assert.equal(r.object, "chat.completion");
  assert.equal(r.choices[0].message.content, answer);
  assert.equal(r.choices[0].finish_reason, "stop");
  assert.ok(r.usage.prompt_tokens > 0 && r.usage.completion_tokens > 0);
  assert.equal(r.usage.total_tokens, r.usage.prompt_tokens + r.usage.completion_tokens);
});

test("stream with usage", async () => {
  const stream = await client.chat.completions.create({
    model, messages, temperature: 0, stream: true, stream_options: { include_usage: true },
  });
  let text = "", finish = null, usage = null;
  for await (const chunk of stream) {
    assert.equal(chunk.object, "chat.completion.chunk");
    text += chunk.choices[0]?.delta?.content ?? "";
    finish = chunk.choices[0]?.finish_reason ?? finish;
    usage = chunk.usage ?? usage;
  }
  assert.equal(text, answer);
  assert.equal(finish, "stop");
  assert.ok(usage.completion_tokens > 0);
});

test("stream without usage has none", async () => {
  const stream = await client.chat.completions.create({ model, messages, temperature: 0, stream: true });
  for await (const chunk of stream) assert.ok(!chunk.usage, "usage was not asked for");
});

test("log-probabilities", async () => {
  const r = await client.chat.completions.create({ model, messages, temperature: 0, logprobs: true, top_logprobs: 2 });
  const tokens = r.choices[0].logprobs.content;
  assert.equal(tokens.map((t) => Buffer.from(t.bytes).toString()).join(""), answer);
  for (const t of tokens) {
    assert.ok(t.logprob <= 0);
    assert.equal(t.top_logprobs.length, 2);
    assert.ok(t.top_logprobs[0].logprob >= t.top_logprobs[1].logprob);
  }
});

test("text completion", async () => {
  const r = await client.completions.create({ model, prompt: "U: turn on the kitchen light\nA: ", temperature: 0, max_tokens: 64 });
  assert.equal(r.object, "text_completion");
  assert.equal(r.choices[0].text, answer);
});

test("models", async () => {
  const ids = [];
  for await (const m of client.models.list()) ids.push(m.id);
  assert.ok(ids.includes(model), `${ids} has no ${model}`);
});

test("errors are of the client's classes", async () => {
  const bad = new OpenAI({ baseURL, apiKey: "wk_nobody_0123456789012345678901234567890123456789", maxRetries: 0 });
  await assert.rejects(bad.models.list(), OpenAI.AuthenticationError);
  await assert.rejects(client.chat.completions.create({ model: "no-such-model", messages }), OpenAI.NotFoundError);
  await assert.rejects(client.chat.completions.create({ model, messages: [] }), (e) => {
    assert.ok(e instanceof OpenAI.BadRequestError);
    assert.equal(e.param, "messages");
    return true;
  });
});

test("an aborted stream ends", async () => {
  const stream = await client.chat.completions.create({ model, messages, stream: true });
  for await (const _ of stream) break;
});

test("ten at a time", async () => {
  const all = await Promise.all(Array.from({ length: 10 }, () => client.chat.completions.create({ model, messages, temperature: 0 })));
  for (const r of all) assert.equal(r.choices[0].message.content, answer);
});
