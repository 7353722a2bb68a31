// @ts-check
/** The nodes of a cluster that decodes: the state of each, how fast it is, and what it waits for. */
import { byId, html, show, sync } from "./dom.js";
import { tableHead, tableRow } from "./tables.js";
import { count, rate, visible } from "./words.js";

/** @import { Node } from "./shapes.js" */
/** @import { Column } from "./tables.js" */

/** @type {Column<Node>[]} */
const COLUMNS = [
  { head: "Node", fields: [["name", (n) => visible(n.name)]] },
  {
    head: "State",
    fields: [["figure", (n) => (isWell(n) ? n.state : "")], ["wrong", (n) => (isWell(n) ? "" : `⚠ ${n.state}`)]],
  },
  { head: "Delivered, samples/s", fields: [["figure", (n) => rate(n.samples_per_s)]] },
  { head: "Workers", fields: [["figure", (n) => count(n.workers)]] },
  { head: "Tasks", fields: [["figure", (n) => count(n.tasks)]] },
  { head: "Waits for", fields: [["small", (n) => visible(n.waits_for)]] },
];

/** @param {Node[]} nodes */
export function showNodes(nodes) {
  const table = byId("nodes-table");
  show(byId("nodes"), nodes.length > 0);
  if (!table.tHead) table.append(tableHead(COLUMNS), html("tbody", { role: "rowgroup" }));
  sync(table.tBodies[0], nodes, ({ name }) => name, (node) => tableRow(COLUMNS, node));
}

function isWell({ state }) {
  return ["serving", "starting"].includes(state);
}
