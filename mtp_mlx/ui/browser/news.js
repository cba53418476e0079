// What the server says of runs, put together: each piece of news has only what is new (see mtp_mlx/ui/news.py).
class Hearing {
  // begin(news, before): another run's first news has come; before is the film of the last one.
  // changed(film): there is more of the run.
  constructor({ begin, changed }) {
    Object.assign(this, { begin, changed, number: 0, film: new Film({ status: "idle" }), beat: -1, early: null });
    Object.assign(this, { asked: false, silent: 0 }); // whether a run was asked for, and for how many seconds nothing came
  }

  // Whether there is news to come.
  waits() {
    return this.asked || BUSY.includes(this.film.trace.status);
  }

  // Of two runs the one with the higher number stands: what an older one still says is not heard. A piece can be lost
  // where two come at once: the framework passes on the newer one.
  take(news) {
    const { run, lane, rounds, beat } = news;
    if (run < this.number) return;
    Object.assign(this, { asked: false, silent: 0 });
    if (run > this.number) {
      const before = this.film;
      const film = new Film({ ...news, rounds: [], token_ids: [], text: "" });
      Object.assign(this, { number: run, film, beat: -1, early: null });
      this.begin(news, before);
      if (lane === 2 && !before.trace.finish) return this.ask(before, news); // the two are compared
    }
    if (this.early) this.early.push(news);
    else if (rounds && beat !== this.beat + 1) this.ask(this.film, news);
    else this.add(news);
  }

  // Asks for the whole of a run; what comes in the meantime waits, and where the whole is lost it is not heard.
  async ask(film, news) {
    const { number } = this;
    this.early = [news];
    const whole = await server.whole(film.trace.key).then((text) => JSON.parse(text ?? "null"), () => null);
    if (this.number !== number) return;
    if (!whole) return this.add({ status: "failed", message: LOST });
    extend(film, { ...whole, status: news.status });
    if (film === this.film) this.beat = news.beat - 1;
    const { early } = this;
    this.early = null;
    for (const one of early) this.take(one);
  }

  add({ beat = -1, ...news }) {
    this.beat = beat;
    extend(this.film, news);
    this.changed(this.film);
  }
}

// Puts a piece of news, or the whole, to what is known of a run.
function extend(film, { rounds = [], since = 0, ...rest }) {
  const before = film.trace;
  const fresh = rounds.slice(film.rounds.length - since);
  film.add(fresh);
  for (const { drafted, accepted, token } of fresh) {
    before.token_ids.push(...drafted.slice(0, accepted).map(({ id }) => id), ...(token ? [token.id] : []));
  }
  const text = before.text + fresh.map(({ added }) => added).join("");
  film.trace = { ...before, text, ...rest, rounds: film.rounds, token_ids: before.token_ids };
  film.pending = film.trace.pending ?? [];
}

const LOST = "a part of this run was lost on its way here: run it again";
const BUSY = ["starting", "queued", "loading", "running"];
