// @ts-check
/**
 * What the page reads of what the daemon tells: /live, /pictures and /bad. Nothing here runs.
 *
 * @typedef {{version: string, pid: number, endpoint: string, host: string, uptime_s: number, workers: number,
 *   busy_fraction: number, memory_bytes: number, memory_used_bytes: number, worker_deaths: number, draining: boolean,
 * }} Daemon
 *
 * Where batches wait. `reading` and `decoding` are parts of the workers' time, together perhaps more than 1.
 * @typedef {"disk" | "decode" | "memory" | "transport" | "none" | "pending" | "nobody"} Limit
 * @typedef {{reading: number, decoding: number, slots: number, waiting: number, limit: Limit, words: string}} Way
 *
 * `sessions` are its trainers; `decoded_per_s` counts batches, `samples_per_s` those sent.
 * @typedef {{name: string, source: string, image: string, cached: boolean, samples: number, batch_size: number,
 *   sessions: number, decoded_per_s: number | null, samples_per_s: number | null,
 *   decodes_per_batch: number | null, bad: number, new_bad: number, faults: Record<string, number>,
 *   shuffle_score: number | null, sent_samples: number, receipts_ok: number, receipts_bad: number,
 *   stopped: string | null, failed: string | null, remedy: string | null, poorly_mixed: string | null,
 * }} Stream
 *
 * Epochs count from 0; trainers of a stream with the same `cohort` share each decode; `left_s` is of this epoch, `lag`
 * in steps behind the furthest, the verdict that of the last epoch.
 * @typedef {{session: number, stream: string, rank: number, world: number, cohort: number | null, epoch: number,
 *   epochs: number | null, step: number, steps: number, credit: number, held: number, doing: string,
 *   doing_words: string, samples_per_s: number | null, lag: number | null, left_s: number | null,
 *   verdict: string | null, verdict_words: string | null,
 * }} Trainer
 *
 * `way` is null in the first event. While the daemon does not serve yet, it tells what it does instead.
 * @typedef {{daemon: Daemon, troubles: string[], way: Way | null, streams: Stream[], trainers: Trainer[]}} Snapshot
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
