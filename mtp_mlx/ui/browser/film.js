// A trace as moments: each drafted token appears, the pass judges them all together, the model's own token follows.
class Film {
  constructor(trace) {
    this.trace = trace;
    this.rounds = [];
    this.pending = [];
    this.ends = []; // for each round the moment at which it is whole
    this.seconds = []; // and the time
    this.guessing = []; // and how much of that went into drafts
    this.sums = sumsOfNone();
    this.add(trace.rounds ?? []);
  }

  add(rounds) {
    for (const round of rounds) {
      const { drafted, token, draft_seconds, verify_seconds } = round;
      const moments = drafted.length + (drafted.length > 0) + (token !== null);
      this.ends.push((this.ends.at(-1) ?? 0) + moments);
      this.seconds.push((this.seconds.at(-1) ?? 0) + draft_seconds + verify_seconds);
      this.guessing.push((this.guessing.at(-1) ?? 0) + draft_seconds);
      this.rounds.push(round);
    }
  }

  get length() {
    return (this.ends.at(-1) ?? 0) + this.pending.length;
  }

  // How many of the first rounds are passes over guesses: the first token came with the prompt.
  passes(done) {
    return done - (done > 0 && this.rounds[0]?.kind === "first");
  }

  // What a round's pass is called; 0 is that over the prompt.
  number(index) {
    return this.passes(index + 1);
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

  // The sums of the first rounds. From one round to the next only that one is added.
  sumsOf(done) {
    if (this.sums.rounds > done) this.sums = sumsOfNone();
    while (this.sums.rounds < done) addRound(this.sums, this.rounds[this.sums.rounds]);
    return this.sums;
  }

  text({ done, step }) {
    if (done === this.rounds.length && !step) return this.trace.text ?? "";
    return this.sumsOf(done).text;
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

const sumsOfNone = () => {
  const numbers = { rounds: 0, first: 0, undrafted: 0, tokens: 0, drafted: 0, accepted: 0, draft: 0, verify: 0 };
  return { ...numbers, text: "", made: [], kept: [] };
};

// ``made`` and ``kept`` are by place in the draft; ``first`` counts tokens that came with the prompt.
function addRound(sums, { drafted, accepted, token, kind, added, draft_seconds, verify_seconds }) {
  sums.rounds++;
  sums.text += added;
  sums.first += kind === "first";
  sums.undrafted += !drafted.length && kind !== "first";
  sums.tokens += accepted + (token !== null);
  sums.drafted += drafted.length;
  sums.accepted += accepted;
  sums.draft += draft_seconds;
  sums.verify += verify_seconds;
  for (let i = 0; i < drafted.length; i++) {
    sums.made[i] = (sums.made[i] ?? 0) + 1;
    sums.kept[i] = (sums.kept[i] ?? 0) + (i < accepted);
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
