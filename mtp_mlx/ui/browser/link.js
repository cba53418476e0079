// Is the server still there? It is asked where it is silent though something was asked of it.
const SILENT = 5; // seconds after which it is asked: while a run goes on there is news twice a second
const DEAF = 60; // seconds after which nothing more will come, whatever it answers
const BACK = 3; // seconds that news has to come again, once it answers again

// Says that it is gone, by lost(true), and that it is back, by lost(false). Where news does not come again, the page is
// loaded anew: what is typed and chosen outlives that.
function watchOver(hearing, lost) {
  let [asking, gone, answers] = [false, false, 0];
  const tick = async () => {
    if (gone && !hearing.silent) {
      gone = false;
      lost(false);
    }
    if (asking || (document.hidden && !gone) || !hearing.waits()) return;
    hearing.silent++; // only seconds in which the page is awake: a closed laptop is no silence of the server's
    if (hearing.silent <= SILENT) return;
    asking = true;
    const there = await isThere();
    asking = false;
    if (!hearing.silent) return;
    answers = there ? answers + 1 : 0;
    if (!there && !gone) {
      gone = true;
      lost(true);
    } else if (there && ((gone && answers >= BACK) || hearing.silent > DEAF)) location.reload();
  };
  setInterval(tick, 1000);
  addEventListener("pagehide", () => {
    if (hearing.waits()) keep("mtp-ended", "yes");
  });
}

async function isThere() {
  try {
    return (await fetch("gradio_api/app_id", { cache: "no-store", signal: AbortSignal.timeout(10_000) })).ok;
  } catch {
    return false;
  }
}

// A browser may keep its storage shut.
function keep(name, value) {
  try {
    sessionStorage.setItem(name, value);
  } catch {}
}

function takeKept(name) {
  try {
    const kept = sessionStorage.getItem(name);
    sessionStorage.removeItem(name);
    return kept;
  } catch {
    return null;
  }
}
