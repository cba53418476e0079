// The steps that are told on recorded runs: passes, drafts, verification, the head, and a text that is hard to guess.

function stepPass(piece) {
  const film = runs.plain;
  const [text, counter, top] = [written(""), line(), make("div", "choices")];
  let done = 0;
  const next = button([words.learn.onePass], () => {
    done = done < film.rounds.length ? done + 1 : 0;
    draw();
  });
  const draw = () => {
    const whole = done === film.rounds.length;
    say(text, film.text({ done, step: 0 }));
    say(counter, whole ? words.learn.allPasses(done) : words.learn.somePasses(done));
    say(next, whole ? words.learn.again : words.learn.onePass);
    const { rows, token } = film.rounds[done - 1] ?? {};
    top.replaceChildren(...(token ? [bars(words.learn.whatItThought(film.number(done - 1)), rows[0].top, token.id)] : []));
  };
  piece.append(make("p", "note", words.learn.asked(film.trace)), text, next, counter, top);
  draw();
}

// The model's judgement of each draft is bet on before it is seen.
function stepDraft(piece) {
  const film = runs.mtp;
  const [text, draft, choice, result] = [written(""), make("div", ""), make("div", "bets"), line()];
  const drafts = film.rounds.flatMap(({ drafted }, i) => (drafted.length ? [i] : []));
  let [at, right] = [0, 0];
  const show = (tokens) => {
    const { drafted } = film.rounds[drafts[at]];
    const guesses = tokens.map((one, i) =>
      make("li", "", ...chips([one]).children, make("small", "", drafted[i] ? percent(drafted[i].probability) : "")),
    );
    draft.replaceChildren(make("ol", "guesses", ...guesses));
  };
  const ask = () => {
    const { drafted } = film.rounds[drafts[at]];
    say(text, film.text({ done: drafts[at], step: 0 }));
    say(result, words.learn.bet);
    show(film.tokens(drafts[at], drafted.length));
    choice.replaceChildren(...Array.from({ length: drafted.length + 1 }, (_, kept) => button([`${kept}`], () => check(kept))));
  };
  const check = (bet) => {
    const { accepted } = film.rounds[drafts[at]];
    right += bet === accepted;
    show(film.tokens(drafts[at], Infinity));
    const last = at === drafts.length - 1;
    say(result, words.learn.betJudged(bet, accepted) + (last ? ` ${words.learn.betScore(right, drafts.length)}` : ""));
    const go = button([last ? words.learn.again : words.learn.nextDraft], () => {
      [at, right] = last ? [0, 0] : [at + 1, right];
      ask();
      choice.firstChild.focus();
    });
    choice.replaceChildren(go);
    go.focus();
  };
  piece.append(make("p", "note", words.learn.asked(film.trace)), text, draft, choice, result);
  ask();
}

// The text of one drafter after the other, by passes, and one pass of it row by row.
function stepVerify(piece) {
  const names = ["mtp", "lookup", "standalone", "plain"];
  const [passes, table, result] = [make("div", ""), make("div", "choices"), line()];
  const plain = runs.plain.trace.token_ids;
  const draw = (name) => {
    const film = runs[name];
    const ids = film.trace.token_ids;
    const equal = ids.length === plain.length && ids.every((id, i) => id === plain[i]);
    const boxes = film.rounds.map((_, i) => ({ label: [chips(film.tokens(i, Infinity))], className: "option round" }));
    const first = Math.max(0, film.rounds.findIndex(({ kind }) => kind === "correction"));
    passes.replaceChildren(radios(words.rounds, boxes, first, (i) => rows(film, i)));
    say(result, words.learn.sameText({ passes: film.rounds.length, tokens: ids.length, equal }));
    rows(film, first);
  };
  const rows = (film, index) => {
    const { drafted, rows, accepted, kind } = film.rounds[index];
    const states = film.tokens(index, Infinity).map(([, state]) => state);
    if (kind === "correction") states.length = accepted + 1; // the correction is the row of the wrong guess
    const head = make("tr", "", ...words.learn.rowHeads.map((text) => make("th", "", text)));
    const body = rows.map(({ top: [best] }, i) => {
      const state = states[i] ?? "unread"; // after a wrong guess, or the end of the text
      const guess = drafted[i] ? readable(drafted[i].text) : "–";
      const own = i === drafted.length && state !== "unread";
      const verdict = `${GLYPHS[state]} ${own ? words.learn.ownToken : words.state[state]}`;
      const choice = make("td", state === "unread" ? "" : "this", readable(best.text));
      return make("tr", "", make("td", "", guess), choice, make("td", "", verdict));
    });
    const caption = make("caption", "", words.learn.onePassRows(film.number(index), rows.length));
    table.replaceChildren(make("table", "bars rows", caption, make("thead", "", head), make("tbody", "", ...body)));
  };
  const options = names.map((name) => ({ label: [words.lane[name]] }));
  const asked = make("p", "note", words.learn.asked(runs.plain.trace));
  piece.append(asked, radios(words.learn.drafter, options, 0, (i) => draw(names[i])), passes, result, table);
  draw("mtp");
}

function stepHead(piece) {
  const film = runs.mtp;
  const guesses = film.rounds.flatMap(({ drafted }, i) => drafted.map((_, place) => [i, place]));
  const looked = make("div", "");
  const show = ([index, place]) => looked.replaceChildren(attention(film, index, place));
  const options = guesses.map(([index, place]) => {
    const [token, state] = film.tokens(index, Infinity)[place];
    return { label: marked([token, state]), className: `token ${state}` };
  });
  piece.append(radios(words.learn.guesses, options, 0, (i) => show(guesses[i])), looked);
  show(guesses[0]);
}

// Two texts: how sure the model was of each token that it wrote, and which of them had been guessed.
function stepUnsure(piece) {
  const films = [runs.mtp, runs.unsure];
  const [chart, result] = [make("div", "strip"), line()];
  Object.assign(chart, { tabIndex: 0, role: "group", ariaLabel: words.learn.steps[6].title }); // it scrolls, by keyboard too
  const draw = (film) => {
    const tokens = film.rounds.flatMap((round, i) => {
      const all = film.tokens(i, Infinity);
      const missed = all.filter(([, state]) => state === "rejected");
      const kept = all.filter(([, state]) => !["rejected", "unread"].includes(state));
      return kept.map((one, place) => ({
        shown: chips(place < round.accepted ? [one] : [one, ...missed]),
        best: one[1] === "accepted",
        chance: round.rows[place].top[0].probability,
      }));
    });
    const items = tokens.map(({ shown, best, chance }) => ({
      value: percent(chance),
      height: chance,
      label: [shown],
      className: best ? "best" : "",
    }));
    chart.replaceChildren(columns(items));
    const sums = { passes: film.rounds.length, tokens: tokens.length, drafted: 0, kept: 0, drafting: 0, time: 0 };
    for (const { drafted, accepted, draft_seconds, verify_seconds } of film.rounds) {
      sums.drafted += drafted.length;
      sums.kept += accepted;
      sums.drafting += draft_seconds;
      sums.time += draft_seconds + verify_seconds;
    }
    const mean = tokens.reduce((sum, { chance }) => sum + chance, 0) / tokens.length;
    say(result, words.learn.unsure({ ...sums, mean: percent(mean), share: percent(sums.drafting / sums.time) }));
  };
  const options = films.map(({ trace }) => ({ label: [trace.input] }));
  piece.append(radios(words.learn.twoTexts, options, 1, (i) => draw(films[i])), make("p", "note", words.learn.unsureHelp), chart, result);
  draw(films[1]);
}
