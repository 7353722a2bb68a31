// @ts-check
/** The streams with their figures, and what could be better about them. */
import { byId, html, say, sayProse, set, show, sync } from "./dom.js";
import { sparkline } from "./history.js";
import { tableHead, tableRow } from "./tables.js";
import { count, counted, hundredths, rate, visible } from "./words.js";

/** @import { History } from "./history.js" */
/** @import { Stream } from "./shapes.js" */
/** @import { Column } from "./tables.js" */
/** @typedef {{kind: string, words: string | null}} Remark */
/** @typedef {{key: string, stream: Stream, remark?: Remark}} Row a stream's figures, or a remark below them */

/** @returns {Column<Stream>[]} */
function columnsWith(history) {
  const spark = ({ name }) => sparkline(history, `stream ${name}`);
  return [
    { head: "Stream", fields: [["name", (s) => visible(s.name)], ["small", aboutOf]] },
    { head: "Taken, samples/s", fields: [["figure", (s) => rate(s.samples_per_s)]], extra: spark },
    { head: "Decoded, batches/s", fields: [["figure", (s) => rate(s.decoded_per_s)]] },
    { head: "Decodes per batch", fields: [["figure", (s) => hundredths(s.decodes_per_batch)], ["small", decodesOf]] },
    { head: "Taken since start", fields: [["figure", (s) => count(s.taken_samples)]] },
    { head: "Receipts", fields: [["figure", (s) => `${count(s.receipts_ok)} ok`], ["wrong", notOk]] },
    { head: "Shuffle score", fields: [["figure", (s) => hundredths(s.shuffle_score)]] },
    { head: "Bad", fields: [["figure", badOf], ["small", kindsOf]] },
  ];
}

/** @param {Stream[]} streams @param {History} history */
export function showStreams(streams, history) {
  const [table, columns] = [byId("streams-table"), columnsWith(history)];
  show(table, streams.length > 0);
  if (!table.tHead) table.append(tableHead(columns), html("tbody", { role: "rowgroup" }));
  const make = (row) => (row.remark ? remarkRow(columns.length) : streamRow(columns, row));
  sync(table.tBodies[0], streams.flatMap(rowsOf), ({ key }) => key, make);
}

/** @returns {Row[]} */
function rowsOf(stream) {
  const remarks = [
    { kind: "Stopped", words: stream.stopped },
    { kind: "Trainers ended", words: stream.stopped ? null : stream.failed },
    { kind: "Advice", words: stream.remedy },
    { kind: "Mixing", words: stream.poorly_mixed },
  ].filter(({ words }) => words);
  const below = remarks.map((remark) => ({ key: `${remark.kind} ${stream.name}`, stream, remark }));
  return [{ key: `=${stream.name}`, stream }, ...below];
}

function aboutOf({ source, image, samples, batch_size, sessions, cached }) {
  const data = `${visible(source)}${cached ? ", cached" : ""} · ${visible(image)} · ${counted(samples, "sample")}`;
  return `${data} in batches of ${count(batch_size)} · ${counted(sessions, "trainer")}`;
}

/** Why there is no figure. */
function decodesOf({ decodes_unknown }) {
  return visible(decodes_unknown ?? "");
}

function notOk({ receipts_bad }) {
  return receipts_bad ? `⚠ ${count(receipts_bad)} not ok` : "";
}

function badOf({ bad, new_bad }) {
  return new_bad ? `${count(bad)} (+${count(new_bad)})` : count(bad);
}

function kindsOf({ faults }) {
  return Object.entries(faults).map(([kind, number]) => `${count(number)} ${kind}`).join(", ");
}

function streamRow(columns, { stream }) {
  const { node, update } = tableRow(columns, stream);
  return { node, update: (row) => update(row.stream) };
}

function remarkRow(columns) {
  const [kind, words] = [html("strong"), html("span")];
  const cell = html("td", { role: "cell", colspan: columns }, kind, " ", words);
  const node = html("tr", { role: "row", class: "remark" }, cell);
  /** @param {Row} row */
  const update = ({ remark }) => {
    say(kind, `${remark?.kind}:`);
    sayProse(words, visible(remark?.words ?? ""));
    set(node, "data-mark", remark?.kind ?? "");
  };
  return { node, update };
}
