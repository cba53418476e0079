// A trace from a file is somebody's text: only what has the shape of a trace gets through, copied field by field.
const MOST_BYTES = 50e6;
const MOST_ROUNDS = 20_000;

class TraceError extends Error {}

// The trace in a file's text; throws a TraceError whose message is one line.
const parseTrace = (() => {
  function refuse(path, what) {
    throw new TraceError(words.refused(path, what));
  }

  // Checkers: (value, path) → a clean copy, or a TraceError.
  const number = (least, most, whole = false) => (value, path) =>
    typeof value === "number" && value >= least && value <= most && (!whole || Number.isInteger(value))
      ? value
      : refuse(path, words.aNumber(least, most));
  const integer = (least, most) => number(least, most, true);
  const text = (most) => (value, path) =>
    typeof value === "string" && value.length <= most ? value : refuse(path, words.aText(most));
  const one = (...known) => (value, path) => (known.includes(value) ? value : refuse(path, words.oneOf(known)));
  const maybe = (check) => (value, path) => (value === null ? null : check(value, path));
  const optional = (check) => (value, path) => (value == null ? null : check(value, path));
  const many = (check, most) => (value, path) =>
    Array.isArray(value) && value.length <= most
      ? value.map((item, i) => check(item, `${path}[${i}]`))
      : refuse(path, words.aList(most));
  const fields = (checks) => (value, path) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) refuse(path, words.anObject);
    const copy = {};
    for (const [name, check] of Object.entries(checks)) {
      copy[name] = check(Object.hasOwn(value, name) ? value[name] : undefined, path ? `${path}.${name}` : name);
    }
    return copy;
  };
  const table = (check, most) => (value, path) => {
    if (typeof value !== "object" || value === null || Array.isArray(value)) refuse(path, words.anObject);
    const entries = Object.entries(value);
    if (entries.length > most) refuse(path, words.aList(most));
    return Object.fromEntries(entries.map(([name, one]) => [name, check(one, `${path}.${name}`)]));
  };
  const pair = (first, second) => (value, path) =>
    Array.isArray(value) && value.length === 2
      ? [first(value[0], `${path}[0]`), second(value[1], `${path}[1]`)]
      : refuse(path, words.aPair);

  const share = number(0, 1);
  const seconds = number(0, 1e6);
  const place = integer(0, 1e6);
  const token = { id: integer(0, 1e7), text: text(2000) };
  const choice = fields({ ...token, probability: share });
  const isRound = fields({
    drafted: many(
      fields({
        ...token,
        probability: maybe(share),
        top: many(choice, 20),
        attention: many(many(pair(place, share), 20_000), 64),
      }),
      64,
    ),
    accepted: integer(0, 64),
    token: maybe(fields(token)),
    kind: one("first", "plain", "correction", "bonus", "end"),
    added: text(200_000),
    margin: number(0, 1e6),
    rows: many(
      fields({ top: many(choice, 20), margin: number(0, 1e6), rank: maybe(integer(1, 1e7)), probability: maybe(share) }),
      65,
    ),
    draft_seconds: seconds,
    verify_seconds: seconds,
  });
  const isTrace = fields({
    version: one(2),
    status: one("done", "stopped"),
    task: text(100),
    drafter: one("mtp", "auto", "standalone", "lookup", "plain"),
    draft_length: integer(0, 64),
    width: integer(1, 64),
    max_tokens: integer(1, 1e6),
    input: text(1e6),
    prompt_tokens: place,
    prompt: many(fields({ ...token, probability: maybe(share) }), 20_000),
    token_ids: many(token.id, 100_000),
    text: text(5e6),
    rounds: many(isRound, MOST_ROUNDS),
    finish: maybe(one("end", "budget", "stopped")),
    memory: fields({ profile: text(100), budget: maybe(number(0, 1e15)), entries: table(number(0, 1e15), 20) }),
    pace: optional(fields({ passes: table(seconds, 64), step: seconds, chances: many(share, 64) })),
    warnings: many(text(2000), 20),
  });

  // Whether tokens are those of a text. A token can be a part of a character, shown as �: there anything but ASCII fits.
  // White space does not count: some tokenizers write it only between tokens.
  function spells(tokens, text) {
    const bare = (string) => string.replace(/\s+/g, "");
    const pieces = bare(tokens.map((token) => token.text).join("")).split(/\ufffd+/);
    const whole = bare(text);
    let at = 0;
    return pieces.every((piece, i) => {
      const found = i === pieces.length - 1 && i ? whole.length - piece.length : whole.indexOf(piece, at);
      const between = whole.slice(at, found);
      const fits = found >= at && whole.startsWith(piece, found) && (i ? /^[^\0-\x7f]*$/.test(between) : !between);
      at = found + piece.length;
      return fits;
    }) && at === whole.length;
  }

  return (json) => {
    let value;
    try {
      value = JSON.parse(json);
    } catch {
      throw new TraceError(words.noJson);
    }
    const trace = isTrace(value, "");
    const { pace, width } = trace;
    if (pace && ![1, width].every((rows) => Object.hasOwn(pace.passes, rows))) refuse("pace.passes", words.noSense);
    const tokens = [];
    trace.rounds.forEach((round, i) => {
      const { drafted, accepted, token, kind, rows } = round;
      const path = `rounds[${i}]`;
      if (accepted > drafted.length || (!token && !accepted)) refuse(path, words.noSense);
      const own = !drafted.length ? (kind === "first" && i === 0 ? kind : "plain") : accepted < drafted.length ? "correction" : "bonus";
      const expected = token === null ? "end" : own;
      if (kind !== expected) refuse(`${path}.kind`, words.oneOf([expected]));
      if (rows.length && rows.length !== drafted.length + 1) refuse(`${path}.rows`, words.noSense);
      rows.forEach((row, j) => {
        if (!row.top.length || (j < drafted.length) !== (row.rank !== null)) refuse(`${path}.rows[${j}]`, words.noSense);
      });
      tokens.push(...drafted.slice(0, accepted), ...(token ? [token] : []));
    });
    if (tokens.length !== trace.token_ids.length || tokens.some(({ id }, i) => id !== trace.token_ids[i])) {
      refuse("token_ids", words.otherIds);
    }
    const added = trace.rounds.map((round) => round.added).join("");
    const held = trace.text.startsWith(added) && /^\ufffd*$/.test(trace.text.slice(added.length)); // of a last character
    if (!held || !spells(tokens.slice(0, trace.finish === "end" ? -1 : undefined), trace.text)) refuse("text", words.otherWords);
    if (trace.status === "done" && !["end", "budget"].includes(trace.finish)) refuse("finish", words.oneOf(["end", "budget"]));
    return { ...trace, pending: [], stats: { tokens: tokens.length } };
  };
})();
