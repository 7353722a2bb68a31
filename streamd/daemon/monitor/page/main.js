// @ts-check
/** The page of a daemon: hears of it once a second, and hands what it hears to the parts. */
import { Bad } from "./bad.js";
import { byId, say, show } from "./dom.js";
import { Head, showDaemon, showTroubles } from "./head.js";
import { History } from "./history.js";
import { Live } from "./live.js";
import { showNodes } from "./nodes.js";
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

function draw(now) {
  const isNew = head.live(now);
  document.body.dataset.seen = "";
  if (isNew) {
    history.clear();
    bad.forget();
    token.doubt();
  }
  history.add(Date.now(), ratesOf(now));
  last = now;
  showTroubles(now.troubles, now.daemon.host, "live");
  showDaemon(now, history);
  way.update(now);
  showTrainers(now, history);
  showNodes(now.daemon.nodes);
  showStreams(now.streams, history);
  pictures.update(now.streams.map(({ name }) => name), false);
  bad.update(now.streams);
  if (now.streams.length) token.verify(now.streams[0].name);
}

/** Of all that is drawn as a line, by name. */
function ratesOf({ streams, trainers }) {
  /** @type {Map<string, number>} */
  const rates = new Map();
  const add = (name, perS) => perS !== null && rates.set(name, perS);
  for (const { name, samples_per_s, decoded_per_s } of streams) {
    add(`stream ${name}`, samples_per_s);
    add(`decoded ${name}`, decoded_per_s);
  }
  for (const { session, samples_per_s } of trainers) add(`trainer ${session}`, samples_per_s);
  return rates.set("taken", streams.reduce((sum, each) => sum + (each.samples_per_s ?? 0), 0));
}

function showAccess() {
  say(byId("access-words"), token.advice);
  show(byId("access"), token.advice !== "");
}

const live = new Live(token, {
  hear: (news) => ("starting" in news ? head.starting(news.starting) : draw(news)),
  miss: (sinceMs) => {
    head.away(sinceMs, () => live.open());
    pictures.update(last?.streams.map(({ name }) => name) ?? [], true);
    showTroubles(last?.troubles ?? [], last?.daemon.host ?? "", "away");
  },
});

byId("access-form").addEventListener("submit", (event) => {
  event.preventDefault();
  token.take(byId("token").value);
  byId("token").value = "";
});
token.onChange(showAccess);
showAccess();
offerSchemes(byId("theme"));
live.start();
