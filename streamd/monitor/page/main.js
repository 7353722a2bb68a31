// @ts-check
/** The page of a daemon: hears of it once a second, and hands what it hears to the parts. */
import { Bad } from "./bad.js";
import { byId, say, show } from "./dom.js";
import { Head, showDaemon, showTroubles } from "./head.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { Pictures } from "./pictures.js";
import { showStreams } from "./streams.js";
import { offerSchemes } from "./theme.js";
import { Token } from "./token.js";
import { showTrainers } from "./trainers.js";
import { Way } from "./way.js";

/** @import { Snapshot } from "./shapes.js" */

const token = new Token();
const history = new History();
const head = new Head();
const way = new Way();
const pictures = new Pictures(token);
const bad = new Bad(token);
/** @type {Snapshot | null} */
let last = null;

/** @param {Snapshot} now */
function draw(now) {
  last = now;
  if (head.live(now)) {
    history.clear();
    bad.forget();
  }
  history.add(Date.now(), ratesOf(now));
  showTroubles(now.troubles, now.daemon.host, "live");
  showDaemon(now, history);
  way.update(now);
  showTrainers(now, history);
  showStreams(now.streams, history);
  pictures.update(now.streams.map(({ name }) => name), false);
  bad.update(now.streams);
}

/** @param {Snapshot} now @returns {Map<string, number>} */
function ratesOf({ streams, trainers }) {
  const sent = streams.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0);
  /** @type {[string, number][]} */
  const ofStreams = streams.map((each) => [`stream ${each.name}`, each.samples_per_s ?? 0]);
  /** @type {[string, number][]} */
  const ofTrainers = trainers.map((each) => [`trainer ${each.session}`, each.samples_per_s ?? 0]);
  return new Map([["sent", sent], ...ofStreams, ...ofTrainers]);
}

function showAccess() {
  say(byId("access-words"), token.advice);
  show(byId("access"), token.advice !== "");
}

const live = new Live({
  hear: (news) => ("starting" in news ? head.starting(news.starting) : draw(news)),
  miss: (sinceMs) => {
    head.away(sinceMs, () => live.open());
    pictures.update(last?.streams.map(({ name }) => name) ?? [], true);
    showTroubles(last?.troubles ?? [], last?.daemon.host ?? "", "away");
  },
});

byId("access-form").addEventListener("submit", (/** @type {SubmitEvent} */ event) => {
  event.preventDefault();
  token.take(byId("token").value);
  byId("token").value = "";
});
token.onChange(showAccess);
showAccess();
offerSchemes(byId("theme"));
live.start();
