// @ts-check
/** The streams with their figures, and what could be better about them. */
import { byId, html, say, sayProse, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { cell, figure, rowHead, small, tableHead } from "./tables.js";
import { count, counted, hundredths, rate, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Stream } from "./shapes.js" */

/** @typedef {{key: string, stream: Stream, remark: Remark | null}} Row a stream's figures, or a remark below them */
/** @typedef {{kind: string, words: string}} Remark */

const COLUMNS = ["Stream", "Sent, samples/s", "Decoded, batches/s", "Decodes a batch", "Sent since start", "Receipts", "Shuffle score", "Bad"];

/** @param {Stream[]} streams @param {History} history */
export function showStreams(streams, history) {
  const table = byId("streams-table");
  show(table, streams.length > 0);
  if (!table.tHead) table.append(tableHead(COLUMNS), html("tbody", { role: "rowgroup" }));
  sync(table.tBodies[0], streams.flatMap(rowsOf), ({ key }) => key, (row) => (row.remark ? remarkRow() : streamRow(row.stream, history)));
}

/** @param {Stream} stream @returns {Row[]} */
function rowsOf(stream) {
  const remarks = remarksOf(stream).map((remark) => ({ key: `${remark.kind} ${stream.name}`, stream, remark }));
  return [{ key: `=${stream.name}`, stream, remark: null }, ...remarks];
}

/** @param {Stream} stream @returns {Remark[]} */
function remarksOf(stream) {
  const found = [
    { kind: "Stopped", words: stream.stopped },
    { kind: "Trainers ended", words: stream.stopped ? null : stream.failed },
    { kind: "Advice", words: stream.remedy },
    { kind: "Mixing", words: stream.poorly_mixed },
  ];
  return /** @type {Remark[]} */ (found.filter(({ words }) => words));
}

/** @param {Stream} stream @param {History} history */
function streamRow(stream, history) {
  const about = small();
  const [sent, decoded, decodes, since, ok, score, bad] = [figure(), figure(), figure(), figure(), figure(), figure(), figure()];
  const [notOk, kinds] = [html("span", { class: "wrong" }), small()];
  const spark = sparkline(history, `stream ${stream.name}`);
  const node = html(
    "tr",
    { role: "row" },
    rowHead(html("bdi", { class: "name" }, visible(stream.name)), " ", about),
    cell("Sent, samples/s", sent, " ", spark.node),
    cell("Decoded, batches/s", decoded),
    cell("Decodes a batch", decodes),
    cell("Sent since start", since),
    cell("Receipts", ok, " ", notOk),
    cell("Shuffle score", score),
    cell("Bad", bad, " ", kinds),
  );
  /** @param {Row} row */
  const update = ({ stream: now }) => {
    say(about, aboutOf(now));
    say(sent, rate(now.samples_per_s));
    say(decoded, rate(now.decoded_per_s));
    say(decodes, hundredths(now.decodes_per_batch));
    say(since, count(now.sent_samples));
    say(ok, `${count(now.receipts_ok)} ok`);
    say(notOk, now.receipts_bad ? `⚠ ${count(now.receipts_bad)} not ok` : "");
    say(score, hundredths(now.shuffle_score));
    say(bad, `${count(now.bad)}${now.new_bad ? ` (+${count(now.new_bad)})` : ""}`);
    say(kinds, Object.entries(now.faults).map(([kind, number]) => `${count(number)} ${kind}`).join(", "));
    spark.update();
  };
  return { node, update };
}

/** @param {Stream} stream */
function aboutOf({ source, image, samples, batch_size, sessions, cached }) {
  const kept = cached ? ", cached" : "";
  return `${visible(source)}${kept} · ${visible(image)} · ${counted(samples, "sample")} in batches of ${count(batch_size)} · ${counted(sessions, "trainer")}`;
}

function remarkRow() {
  const kind = html("strong");
  const words = html("span");
  const node = html("tr", { role: "row", class: "remark" }, html("td", { role: "cell", colspan: COLUMNS.length }, kind, " ", words));
  /** @param {Row} row */
  const update = ({ remark }) => {
    if (!remark) return;
    say(kind, `${remark.kind}:`);
    sayProse(words, visible(remark.words));
    set(node, "data-kind", remark.kind);
  };
  return { node, update };
}
