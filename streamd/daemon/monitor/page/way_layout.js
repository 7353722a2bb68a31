// @ts-check
/** Where everything of the way lies: from left to right where there is room, else from the top down. Pure. */

/** @import { Cohort, Picked } from "./way_pick.js" */

/** @typedef {{x: number, y: number}} Point */
/** @typedef {{x: number, y: number, w: number, h: number}} Box */
/** @typedef {{key: string, box: Box}} Source */
/** @typedef {{cohort: Cohort, head: Point, w: number, joint: Point, boxes: Box[]}} Group */
/** @typedef {{key: string, d: string, from: "source" | "hub" | "tank" | "cohort"}} Edge */
/** @typedef {{key: string, x: number, y: number}} Caption */
/** @typedef {{x: number, y: number, toY: number, isEnd: boolean}} Tag where it is said that it waits, and at what */

/**
 * `hub` are the workers, `tank` is the memory; in `rest` are trainers that are not drawn, or the words that there is
 * none; tags are by limit.
 * @typedef {{isWide: boolean, height: number, sources: Source[], hub: Box, tank: Box, groups: Group[],
 *   rest: Box | null, edges: Edge[], captions: Caption[], tags: Record<string, Tag>}} Layout
 */

/** @typedef {Pick<Layout, "sources" | "groups" | "rest">} Ends */
/** @typedef {(box: Box, at: number, of: number) => string} ToHub */
/** @typedef {(to: Point, at: number, of: number) => string} FromTank */
/** @typedef {{source: ToHub, hub: string, tank: FromTank}} Lines */

export const CELL = 14;
const WIDE_FROM = 760;
const SOURCE_H = 46;
const TRAINER_H = 44;
const GAP = 8;
const HEAD = 20; // above a cohort
const TOP = 54; // captions and tags
const DEEPEST = 200; // is the middle of a wide drawing below its top
const TANK_WORDS = 46; // below it
const RAIL = 10; // the line that all of a narrow drawing hangs on

/** @param {Picked} picked @param {number} width @param {number} cells that stand for the workers @returns {Layout} */
export function layOut(picked, width, cells) {
  return (width >= WIDE_FROM ? wide : narrow)(picked, width, cells);
}

/** @param {number} cells @param {number} width of the box that they are in */
export function cellColumns(cells, width) {
  return Math.max(1, Math.min(cells, Math.floor((width - 24) / CELL)));
}

function hubHeight(cells, width) {
  return 34 + Math.ceil(cells / cellColumns(cells, width)) * CELL + 62;
}

// --- from left to right

/** @type {typeof layOut} */
function wide(picked, width, cells) {
  const [sourceW, hubW, tankW, trainerW] = [0.2, 0.19, 0.12, 0.3].map((part) => Math.round(width * part));
  const gap = (width - sourceW - hubW - tankW - trainerW) / 3 - 4;
  const [hubX, trainerX] = [sourceW + gap, width - trainerW];
  const [hubH, tankH] = [hubHeight(cells, hubW), 104];
  const sourcesH = sourceStack(picked, 0, 0, sourceW).length * (SOURCE_H + GAP) - GAP;
  const trainersH = trainerStack(picked, trainerX, 0, trainerW).bottom;
  const inner = Math.max(sourcesH, hubH, tankH + 2 * TANK_WORDS, trainersH);
  const middle = TOP + Math.min(inner / 2, DEEPEST); // so that the daemon itself is on the first screen
  const top = (h) => Math.max(TOP, middle - h / 2);
  const hub = { x: hubX, y: top(hubH), w: hubW, h: hubH };
  const tank = { x: hubX + hubW + gap, y: top(tankH), w: tankW, h: tankH };
  const { groups, rest } = trainerStack(picked, trainerX, top(trainersH), trainerW);
  const ends = { sources: sourceStack(picked, 0, top(sourcesH), sourceW), groups, rest };
  const tag = (x, toY) => ({ x, y: 30, toY, isEnd: false });
  return {
    isWide: true,
    height: TOP + inner + 10,
    hub,
    tank,
    ...ends,
    edges: edgesOf(ends, {
      source: (box, at, of) => curve(right(box), port(hub, hub.x, at, of)),
      hub: curve(right(hub), left(tank)),
      tank: (to, at, of) => curve(port(tank, tank.x + tankW, at, of), to),
    }),
    captions: captionsAt([0, hubX, tank.x, trainerX].map((x) => ({ x, y: 11 }))),
    tags: {
      disk: tag(sourceW + gap / 2, middle - 12),
      decode: tag(hubX + hubW / 2, hub.y),
      memory: tag(tank.x + tankW / 2, tank.y),
      transport: tag(tank.x + tankW + gap / 2 - 12, middle - 14),
      none: tag(trainerX + trainerW / 2, top(trainersH)),
    },
  };
}

// --- from the top down

/** @type {typeof layOut} */
function narrow(picked, width, cells) {
  const [x, deep] = [RAIL + 16, RAIL + 34];
  const sources = sourceStack(picked, x, HEAD, width - x);
  const hub = { x: 0, y: HEAD + sources.length * (SOURCE_H + GAP) + 40, w: width, h: hubHeight(cells, width) };
  const tank = { x: 0, y: hub.y + hub.h + 44, w: width, h: 64 };
  const end = tank.y + tank.h;
  const { groups, rest, bottom } = trainerStack(picked, deep, end + 40, width - deep);
  const ends = { sources, groups, rest };
  const tag = (y) => ({ x: width, y, toY: y + 18, isEnd: true });
  return {
    isWide: false,
    height: bottom + 6,
    hub,
    tank,
    ...ends,
    edges: edgesOf(ends, {
      source: (box) => `M${box.x} ${left(box).y}H${RAIL + 8}q-8 0 -8 8V${hub.y}`,
      hub: `M${RAIL} ${hub.y + hub.h}V${tank.y}`,
      tank: (to) => `M${RAIL} ${end}V${to.y - 8}q0 8 8 8H${to.x}`,
    }),
    captions: captionsAt([11, hub.y - 10, tank.y - 10, end + 30].map((y) => ({ x, y }))),
    tags: {
      disk: tag(hub.y - 24),
      decode: tag(hub.y - 24),
      memory: tag(tank.y - 24),
      transport: tag(end + 16),
      none: tag(end + 16),
    },
  };
}

// --- both

function sourceStack({ streams, moreStreams }, x, y, w) {
  const keys = streams.map(({ name }) => `=${name}`).concat(moreStreams ? ["+"] : []);
  return keys.map((key, row) => ({ key, box: { x, y: y + row * (SOURCE_H + GAP), w, h: SOURCE_H } }));
}

function trainerStack({ cohorts, moreTrainers }, x, y, w) {
  const groups = cohorts.map((cohort) => {
    const top = y + HEAD;
    const rows = cohort.shown + (cohort.all.length > cohort.shown ? 1 : 0);
    const boxes = Array.from({ length: rows }, (_, row) => ({ x, y: top + row * (TRAINER_H + GAP), w, h: TRAINER_H }));
    const bottom = top + rows * (TRAINER_H + GAP) - GAP;
    y = bottom + GAP + 4;
    return { cohort, head: { x, y: top - 7 }, w, joint: { x: x - 24, y: (top + bottom) / 2 }, boxes };
  });
  const rest = moreTrainers || !cohorts.length ? { x, y, w, h: TRAINER_H } : null;
  return { groups, rest, bottom: rest ? y + TRAINER_H : y - GAP - 4 };
}

function edgesOf({ sources, groups, rest }, lines) {
  /** @type {Edge[]} */
  const edges = [{ key: "hub", d: lines.hub, from: "hub" }];
  sources.forEach(({ key, box }, at) =>
    edges.push({ key: `source ${key}`, d: lines.source(box, at, sources.length), from: "source" }),
  );
  groups.forEach(({ cohort: { key }, joint, boxes }, at) => {
    edges.push({ key: `tank ${key}`, d: lines.tank(joint, at, groups.length), from: "tank" });
    boxes.forEach((box, row) => {
      edges.push({ key: `cohort ${key} ${row}`, d: curve(joint, left(box)), from: "cohort" });
    });
  });
  if (rest) edges.push({ key: "rest", d: lines.tank(left(rest), 0, 1), from: "tank" });
  return edges;
}

function captionsAt(places) {
  return ["sources", "workers", "memory", "trainers"].map((key, at) => ({ key, ...places[at] }));
}

function left(box) {
  return { x: box.x, y: box.y + box.h / 2 };
}

function right(box) {
  return { x: box.x + box.w, y: box.y + box.h / 2 };
}

/** One of several lines at a side of a box. */
function port(box, x, at, of) {
  const step = Math.min(16, (box.h - 40) / Math.max(1, of - 1));
  return { x, y: box.y + box.h / 2 + (at - (of - 1) / 2) * step };
}

function curve(from, to) {
  const middle = (from.x + to.x) / 2;
  return `M${from.x} ${from.y}C${middle} ${from.y} ${middle} ${to.y} ${to.x} ${to.y}`;
}
