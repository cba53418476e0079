// What the server says of runs, put together: each piece of news has only what is new (see mtp_mlx/ui/news.py).
class Hearing {
  // begin(news, before): another run's first news has come; before is the film of the last one.
  // changed(film): there is more of the run.
  constructor({ begin, changed }) {
    Object.assign(this, { begin, changed, number: 0, film: new Film({ status: "idle" }), early: null });
    Object.assign(this, { asked: false, silent: 0 }); // whether a run was asked for, and for how many seconds nothing came
  }

  // Whether there is news to come.
  waits() {
    return this.asked || BUSY.includes(this.film.trace.status);
  }

  // Of two runs the one with the higher number stands: what an older one still says is not heard.
  take(news) {
    const { run = 0 } = news;
    if (run < this.number) return;
    Object.assign(this, { asked: false, silent: 0 });
    if (run > this.number) {
      const before = this.film;
      Object.assign(this, { number: run, film: new Film({ ...news, rounds: [], token_ids: [], text: "" }), early: null });
      this.begin(news, before);
    }
    if (this.early) this.early.push(news);
    else if (this.lacks(news)) this.ask(news);
    else this.add(news);
  }

  // A piece can be lost where two come at once: the framework passes on the newer one.
  lacks({ rounds, since, input }) {
    const { film } = this;
    return rounds && (since > film.rounds.length || (film.trace.input ?? input) === undefined);
  }

  // Asks for the whole; what comes in the meantime waits.
  async ask(news) {
    const { number } = this;
    this.early = [news];
    const whole = await server.whole(news.key).then((text) => JSON.parse(text ?? "null"), () => null);
    if (this.number !== number) return;
    const { early } = this;
    this.early = null;
    if (whole) {
      this.add({ ...whole, since: 0, status: news.status });
      for (const one of early) this.take(one);
    } else this.add({ status: "failed", message: LOST });
  }

  add({ rounds = [], since = 0, ...rest }) {
    const { film } = this;
    const before = film.trace;
    const fresh = rounds.slice(film.rounds.length - since);
    film.add(fresh);
    for (const { drafted, accepted, token } of fresh) {
      before.token_ids.push(...drafted.slice(0, accepted).map(({ id }) => id), ...(token ? [token.id] : []));
    }
    const text = before.text + fresh.map(({ added }) => added).join("");
    film.trace = { ...before, text, ...rest, rounds: film.rounds, token_ids: before.token_ids };
    film.pending = film.trace.pending ?? [];
    this.changed(film);
  }
}

const LOST = "a part of this run was lost on its way here: run it again";
const BUSY = ["starting", "queued", "loading", "running"];
