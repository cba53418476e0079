// A trace as moments: each drafted token appears, the pass judges them all together, the model's own token follows.
class Film {
  constructor(trace) {
    this.trace = trace;
    this.rounds = [];
    this.pending = [];
    this.ends = []; // for each round the moment at which it is whole
    this.seconds = []; // and the time
    this.add(trace.rounds ?? []);
  }

  add(rounds) {
    for (const round of rounds) {
      const { drafted, token, draft_seconds, verify_seconds } = round;
      const moments = drafted.length + (drafted.length > 0) + (token !== null);
      this.ends.push((this.ends.at(-1) ?? 0) + moments);
      this.seconds.push((this.seconds.at(-1) ?? 0) + draft_seconds + verify_seconds);
      this.rounds.push(round);
    }
  }

  get length() {
    return (this.ends.at(-1) ?? 0) + this.pending.length;
  }

  // After some moments: how many rounds are whole, and how many moments of the next one have been.
  at(moment) {
    const done = count(this.ends, moment);
    return { done, step: moment - (this.ends[done - 1] ?? 0) };
  }

  // When a moment comes, in seconds of drafting and verifying.
  time(moment) {
    const { done, step } = this.at(moment);
    const before = this.seconds[done - 1] ?? 0;
    const round = this.rounds[done];
    if (!step || !round) return before;
    const drafted = round.drafted.length;
    return step <= drafted ? before + (round.draft_seconds * step) / drafted : this.seconds[done];
  }

  // The last moment that has come by a time.
  momentAt(seconds) {
    const done = count(this.seconds, seconds);
    let moment = this.ends[done - 1] ?? 0;
    while (moment < this.length && this.time(moment + 1) <= seconds) moment++;
    return moment;
  }

  text({ done, step }) {
    if (done === this.rounds.length && !step) return this.trace.text ?? "";
    return this.rounds
      .slice(0, done)
      .map((round) => round.added)
      .join("");
  }

  // The tokens that were committed before a round.
  committed(index) {
    return this.rounds
      .slice(0, index)
      .flatMap(({ drafted, accepted, token }) => [...drafted.slice(0, accepted), ...(token ? [token] : [])]);
  }

  // The tokens of a round, each with its state, after some of its moments.
  tokens(index, step) {
    const round = this.rounds[index];
    if (!round) return this.pending.slice(0, step).map((token) => [token, "pending"]);
    const { drafted, accepted, token, kind } = round;
    if (step <= drafted.length && drafted.length) return drafted.slice(0, step).map((one) => [one, "pending"]);
    const first = kind === "correction" ? "rejected" : "unread"; // after a verified end of text nothing is read
    const state = (i) => (i < accepted ? "accepted" : i === accepted ? first : "unread");
    const judged = drafted.map((one, i) => [one, state(i)]);
    const whole = !drafted.length || step > drafted.length + 1;
    return token && whole ? [...judged, [token, kind]] : judged;
  }
}

// How many of some rising numbers are at most a limit.
function count(rising, limit) {
  let [low, high] = [0, rising.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (rising[middle] <= limit) low = middle + 1;
    else high = middle;
  }
  return low;
}
