// Step, play, scrub: where in the film the view stands. It follows a live run until somebody takes the controls.
const SPEEDS = [0.25, 0.5, 1, 2, 4];
const player = { film: null, moment: 0, following: true, playing: false, clock: 0, last: 0 };

// Shows a film from now on; a live one is followed, a recorded one is opened at its end.
function load(film) {
  pause();
  Object.assign(player, { film, moment: film.length, following: true });
  closeDetail();
}

// Shows what the film has become.
function refresh() {
  if (player.following) player.moment = player.film.length;
  redraw();
}

function redraw() {
  const { film, moment } = player;
  drawAt(film, moment);
  part.player.hidden = part.download.hidden = film.length === 0;
  part.scrub.max = film.length;
  part.scrub.value = moment;
  part.scrub.setAttribute("aria-valuetext", words.moment(film.passes(film.at(moment).done), film.passes(film.rounds.length)));
  say(part.time, `${film.time(moment).toFixed(2)} s`);
  say(part.play, player.playing ? "❚❚" : "▶");
  part.play.ariaLabel = player.playing ? words.pause : words.play;
}

function go(moment) {
  const { film } = player;
  player.moment = Math.max(0, Math.min(film.length, moment));
  player.clock = film.time(player.moment);
  player.following = player.moment === film.length;
  redraw();
}

function step(moments) {
  pause();
  go(player.moment + moments);
}

function play() {
  if (player.playing) return pause();
  if (player.moment === player.film.length) go(0);
  Object.assign(player, { playing: true, following: false, last: performance.now(), clock: player.film.time(player.moment) });
  requestAnimationFrame(tick);
  redraw();
}

function pause() {
  if (!player.playing) return;
  player.playing = false;
  redraw();
}

function tick(now) {
  if (!player.playing) return;
  const { film } = player;
  player.clock += (Number(part.rate.value) * Math.max(0, now - player.last)) / 1000;
  player.last = now;
  const moment = Math.max(player.moment, film.momentAt(player.clock));
  if (moment === film.length) player.playing = false;
  if (moment !== player.moment || !player.playing) {
    player.moment = moment;
    player.following = moment === film.length;
    redraw();
  }
  if (player.playing) requestAnimationFrame(tick);
}

for (const [name, act] of Object.entries({
  first: () => (pause(), go(0)),
  back: () => step(-1),
  play,
  forward: () => step(1),
  last: () => (pause(), go(player.film.length)),
})) {
  part[name].addEventListener("click", act);
}

part.scrub.addEventListener("input", () => {
  pause();
  go(Number(part.scrub.value));
});

function addSpeeds(select) {
  select.append(...SPEEDS.map((speed) => new Option(`${speed} ×`, speed, speed === 1, speed === 1)));
}

addSpeeds(part.rate);

// Space plays, and the arrows step, wherever no control has its own use for them.
const KEYS = { " ": play, ArrowLeft: () => step(-1), ArrowRight: () => step(1) };
document.addEventListener("keydown", (event) => {
  const { key, target } = event;
  const act = KEYS[key];
  if (!act || part.player.hidden || event.ctrlKey || event.metaKey || event.altKey || !root.offsetParent) return;
  const own = key === " " ? "button, summary, select, a, label" : "button.token, select";
  if (target === part.scrub ? key !== " " : target.closest?.(`${own}, input, textarea, [contenteditable], [role=listbox]`)) return;
  event.preventDefault();
  act();
});
