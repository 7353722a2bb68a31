// @ts-check
/**
 * What the page reads of what the daemon tells: /live, /pictures and /bad. Nothing here runs.
 *
 * @typedef {{version: string, pid: number, endpoint: string, host: string, uptime_s: number, workers: number,
 *   busy_fraction: number, memory_bytes: number, memory_used_bytes: number, worker_deaths: number, draining: boolean,
 *   window: string, nodes: Node[],
 * }} Daemon
 *
 * A node of a cluster that decodes for the daemon.
 * @typedef {{name: string, state: string, workers: number, tasks: number, samples_per_s: number, waits_for: string}} Node
 *
 * Where batches wait. `reading` and `decoding` are parts of the workers' time; `tag` names the limit where it is drawn.
 * @typedef {"disk" | "decode" | "memory" | "transport" | "none" | "pending" | "nobody"} Limit
 * @typedef {{reading: number, decoding: number, slots: number, waiting: number, limit: Limit, words: string,
 *   tag: string, is_bad: boolean | null}} Way
 *
 * `sessions` are its trainers; `decoded_per_s` counts batches, `samples_per_s` samples taken.
 * @typedef {{name: string, source: string, image: string, cached: boolean, samples: number, batch_size: number,
 *   sessions: number, decoded_per_s: number | null, samples_per_s: number | null,
 *   decodes_per_batch: number | null, bad: number, new_bad: number, faults: Record<string, number>,
 *   decodes_unknown: string | null, shuffle_score: number | null, taken_samples: number,
 *   receipts_ok: number, receipts_bad: number,
 *   stopped: string | null, failed: string | null, remedy: string | null, poorly_mixed: string | null,
 * }} Stream
 *
 * Epochs count from 0; trainers of a stream with the same `cohort` share each decode; `left_s` is of this epoch,
 * `lag_steps` in batches of the stream behind the furthest, the verdict that of the last epoch. `own_step` is its
 * own.
 * @typedef {{session: number, stream: string, rank: number, world: number, cohort: number | null, epoch: number,
 *   epochs: number | null, own_step: number, own_steps: number, batch_size: number, name: string, pid: number,
 *   credit: number, held: number, doing: string,
 *   doing_words: string, samples_per_s: number | null, lag_steps: number | null, left_s: number | null,
 *   verdict: string | null, verdict_short: string | null, verdict_words: string | null,
 * }} Trainer
 *
 * While the daemon does not serve yet, it tells what it does instead.
 * @typedef {{daemon: Daemon, troubles: string[], way: Way, streams: Stream[], trainers: Trainer[]}} Snapshot
 * @typedef {{starting: string}} Starting
 *
 * `picture` is a data: address, empty for no sample; `mark` says why a row is not what was planned, mostly nothing.
 * @typedef {{picture: string, labels: string[], sample_id: number, file: string, mark: string, weight: number,
 *   bad: {file: string, reason: string} | null,
 * }} Sample
 * @typedef {{stream: string, epoch: number, index: number, rows: number, heading: string, samples: Sample[]}} Batch
 *
 * `bad` is how many there are in all, `before` where the next page goes on.
 * @typedef {{sample_id: number, file: string, reason: string, kind: string}} BadSample
 * @typedef {{bad: number, samples: BadSample[], before: number | null}} BadPage
 */
export {};
