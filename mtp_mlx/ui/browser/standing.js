// Where a run stands, in a sentence.
function standing(trace) {
  const { status, finish, prompt_tokens, place, max_tokens: most, stage, done, of } = trace;
  const tokens = trace.stats ? words.tokens(trace.stats.tokens) : "";
  if (status === "running") return prompt_tokens ? words.status.running({ tokens, most }) : words.status.reading;
  if (status === "done") return words.status[finish]({ tokens, most });
  if (status === "stopped") return trace.stats ? words.status.stopped({ tokens }) : words.status.stoppedEarly;
  if (status === "idle" && trace.ended) return words.status.ended;
  const line = words.status[status] ?? status;
  if (typeof line === "string") return line;
  const megabytes = of ? ` ${Math.round(done / 1e6)} / ${Math.round(of / 1e6)} MB` : "";
  return line({ message: told(trace.message ?? ""), place, stage: words.stage[stage] ?? "", megabytes });
}
