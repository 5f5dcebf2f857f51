// One answer of the model as it comes: what there is of it so far, again and again.
import { events } from "./events.js";
import { ask } from "./requests.js";

export async function* answer(messages, { temperature, tokens }, signal) {
  const found = { content: "", thought: "", finish: null, usage: null };
  const response = await ask("v1/chat/completions", {
    method: "POST",
    signal,
    body: JSON.stringify({
      messages, stream: true, stream_options: { include_usage: true }, temperature, max_tokens: tokens,
    }),
  });
  try {
    for await (const chunk of events(response.body)) {
      if (chunk.error) throw new Error(chunk.error.message);
      found.usage = chunk.usage ?? found.usage;
      const choice = chunk.choices[0];
      found.finish = choice?.finish_reason ?? found.finish;
      found.thought += choice?.delta.reasoning_content ?? "";
      found.content += choice?.delta.content ?? "";
      yield found;
    }
  } catch (error) {
    throw error instanceof TypeError ? new Error("The connection to the server was lost.") : error;
  }
  if (!found.finish) throw new Error("The connection ended before the answer did.");
}

export function summary({ usage, finish }, seconds) {
  const parts = [];
  const took = seconds < 1 ? `${Math.round(1000 * seconds)} ms` : `${seconds.toFixed(1)} s`;
  if (usage) parts.push(`${usage.completion_tokens} tokens in ${took}`);
  const cached = usage?.prompt_tokens_details?.cached_tokens;
  if (cached) parts.push(`${cached} of ${usage.prompt_tokens} prompt tokens reused`);
  if (finish === "length") parts.push("cut at the token limit");
  return parts.join(" · ");
}
