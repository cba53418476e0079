// The passes as boxes of tokens, a page of them at a time; arrow keys move along a row, one tab stop each.
const PAGE = 100;
const passes = { film: null, first: 0, items: [], opened: null };

function drawPasses(film, { done, step }) {
  const focused = part.rounds.contains(document.activeElement);
  const newest = step ? done : done - 1; // the newest round in sight
  const turns = PAGE * Math.floor(Math.max(newest, 0) / PAGE);
  // A run that goes on does not turn the page under somebody who is on it.
  const stays = focused && player.following && passes.film === film && turns > passes.first;
  const first = stays ? passes.first : turns;
  const last = stays ? first + PAGE - 1 : newest;
  if (passes.film !== film || passes.first !== first) {
    Object.assign(passes, { film, first, items: [] });
    part.rounds.replaceChildren();
    closeDetail();
  }
  while (passes.items.length > last - first + 1) {
    if (passes.items.length - 1 + first === passes.opened?.round) closeDetail();
    passes.items.pop().remove();
  }
  for (let i = first; i <= last; i++) {
    const at = i < done ? Infinity : step;
    const item = passes.items[i - first] ?? addPass(i, film.number(i));
    if (item.at === at) continue;
    const known = item.at !== Infinity; // pending tokens of a live round may have become another round's
    item.at = at;
    if (known || at !== Infinity) fillPass(item, film.tokens(i, at), film.rounds[i]);
    if (passes.opened?.round === i) drawDetail();
  }
  if (focused && !part.rounds.contains(document.activeElement)) {
    part.rounds.querySelector(".round:last-child .token[tabindex='0']")?.focus({ preventScroll: true });
  }
  part.pager.hidden = film.rounds.length <= PAGE;
  say(part.page, words.page(film.number(first), film.number(Math.max(last, first))));
}

function addPass(index, called) {
  const item = make("li", "round");
  const number = make("span", "number", `${called}`);
  const tokens = make("span", "tokens");
  tokens.role = "group";
  tokens.ariaLabel = words.pass(called);
  number.ariaHidden = "true";
  item.append(number, tokens);
  item.dataset.index = index;
  part.rounds.append(item);
  passes.items.push(item);
  return item;
}

// A token that is there already only changes its state.
function fillPass(item, tokens, round) {
  const chips = item.children[1];
  while (chips.children.length > tokens.length) chips.lastChild.remove();
  tokens.forEach(([token, state], i) => {
    const chip = chips.children[i] ?? chips.appendChild(newChip(i));
    if (chip.dataset.id !== `${token.id}`) {
      const glyph = make("i", "");
      glyph.ariaHidden = "true";
      chip.replaceChildren(make("span", "hidden"), glyph, readable(token.text));
      chip.dataset.id = token.id;
    }
    chip.className = `token ${state}`;
    chip.dataset.state = state;
    say(chip.children[0], `${words.state[state]} `);
    say(chip.children[1], GLYPHS[state]);
  });
  if (![...chips.children].some((chip) => chip.tabIndex === 0) && chips.firstChild) chips.firstChild.tabIndex = 0;
  if (round?.kind === "first") item.title = words.firstHelp;
  else if (round) item.title = `${Math.round(1000 * (round.draft_seconds + round.verify_seconds))} ms`;
}

function newChip(i) {
  const chip = make("button", "token");
  chip.type = "button";
  chip.tabIndex = i ? -1 : 0;
  chip.ariaExpanded = "false";
  chip.style.setProperty("--place", i);
  return chip;
}

part.rounds.addEventListener("click", ({ target }) => {
  const chip = target.closest(".token");
  if (!chip) return;
  rove(chip);
  const [round, place] = placeOf(chip);
  const open = passes.opened;
  if (open && open.round === round && open.place === place) closeDetail();
  else openDetail(round, place);
});

// Whoever leaves gets the newest passes.
part.rounds.addEventListener("focusout", ({ relatedTarget }) => {
  if (!part.rounds.contains(relatedTarget) && player.following) requestAnimationFrame(redraw);
});

part.rounds.addEventListener("keydown", (event) => {
  if (event.key === "Escape" && passes.opened) {
    chipOf(passes.opened)?.focus();
    closeDetail();
    return;
  }
  const chip = event.target.closest(".token");
  if (!chip || event.ctrlKey || event.metaKey || event.altKey) return;
  const row = [...chip.parentElement.children];
  const here = row.indexOf(chip);
  const wanted = { ArrowLeft: here - 1, ArrowRight: here + 1, Home: 0, End: row.length - 1 }[event.key];
  const item = { ArrowUp: -1, ArrowDown: 1 }[event.key];
  let next = row[wanted];
  if (item) {
    const other = passes.items[passes.items.indexOf(chip.closest(".round")) + item]?.children[1].children;
    next = other?.[Math.min(here, other.length - 1)];
  } else if (wanted === undefined) return;
  event.preventDefault();
  if (!next) return;
  rove(next);
  next.focus();
  if (passes.opened) openDetail(...placeOf(next)); // what is open follows the keys
});

function rove(chip) {
  for (const other of chip.parentElement.children) other.tabIndex = other === chip ? 0 : -1;
}

function placeOf(chip) {
  return [Number(chip.closest(".round").dataset.index), [...chip.parentElement.children].indexOf(chip)];
}

function chipOf({ round, place }) {
  return passes.items[round - passes.first]?.children[1].children[place];
}
