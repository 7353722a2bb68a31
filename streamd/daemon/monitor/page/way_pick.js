// @ts-check
/** Which streams and trainers the drawing has room for. Pure. */

/** @import { Snapshot, Stream, Trainer } from "./shapes.js" */

/**
 * Trainers that share each decode: `all` of them, of which the first `shown` are drawn one by one.
 * @typedef {{key: string, stream: string, all: Trainer[], shown: number}} Cohort
 */

/** @typedef {{streams: Stream[], moreStreams: number, cohorts: Cohort[], moreTrainers: number}} Picked */

const MAX_STREAMS = 10;
const MAX_TRAINERS = 12;

/** @param {Snapshot} now @returns {Picked} */
export function pick(now) {
  const streams = pickStreams(now.streams);
  const cohorts = cohortsOf(now);
  const drawn = cohorts.slice(0, MAX_TRAINERS);
  allot(drawn);
  const left = cohorts.slice(MAX_TRAINERS).reduce((sum, cohort) => sum + cohort.all.length, 0);
  return { streams, moreStreams: now.streams.length - streams.length, cohorts: drawn, moreTrainers: left };
}

/** Those with trainers first if not all have room, else all as they come. */
function pickStreams(streams) {
  if (streams.length <= MAX_STREAMS) return streams;
  const [read, unread] = [streams.filter((each) => each.sessions), streams.filter((each) => !each.sessions)];
  const kept = new Set([...read, ...unread].slice(0, MAX_STREAMS - 1));
  return streams.filter((each) => kept.has(each));
}

/** In the order of the streams, each cohort's trainers as they come. @param {Snapshot} now */
function cohortsOf(now) {
  const places = new Map(now.streams.map((stream, at) => [stream.name, at]));
  /** @type {Map<string, Cohort>} */
  const found = new Map();
  for (const trainer of now.trainers) {
    const key = `${trainer.stream}/${trainer.cohort ?? `alone ${trainer.session}`}`;
    const cohort = found.get(key) ?? { key, stream: trainer.stream, all: [], shown: 0 };
    cohort.all.push(trainer);
    found.set(key, cohort);
  }
  const place = (cohort) => places.get(cohort.stream) ?? Infinity;
  return [...found.values()].sort((a, b) => place(a) - place(b));
}

/** One more to each in turn, until there is no room or nobody left. */
function allot(cohorts) {
  let room = MAX_TRAINERS;
  for (let round = 0; room > 0 && cohorts.some((each) => each.shown < each.all.length); round++) {
    for (const cohort of cohorts) {
      if (room > 0 && cohort.all.length > round) {
        cohort.shown++;
        room--;
      }
    }
  }
  // A single one left over takes no more room than the words "and 1 more".
  for (const cohort of cohorts) if (cohort.all.length - cohort.shown === 1) cohort.shown++;
}
