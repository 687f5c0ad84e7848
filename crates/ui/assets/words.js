// Numbers and times as texts.

/** @import { Counts, StateName } from '../types/contract.js' */

const grouped = new Intl.NumberFormat('en');

/**
 * A count, which is a string of digits beyond 2^53-1.
 *
 * @param {number | string | null | undefined} count
 */
export function number(count) {
  if (count === null || count === undefined) return '–';
  if (typeof count === 'number') {
    // JSON's numbers are read with 53 bits.
    return Number.isSafeInteger(count) ? grouped.format(count) : `≈2^${Math.round(Math.log2(count))}`;
  }
  const value = BigInt(count);
  const bits = value.toString(2).length - 1;
  return value === 1n << BigInt(bits) ? `2^${bits}` : `≈2^${bits}`;
}

/**
 * @param {number} count
 * @param {string} singular
 * @param {string} [plural]
 */
export function counted(count, singular, plural = `${singular}s`) {
  return `${grouped.format(count)} ${count === 1 ? singular : plural}`;
}

/**
 * A duration in three digits.
 *
 * @param {number} seconds
 */
export function duration(seconds) {
  if (seconds < 0.001) return `${Math.round(seconds * 1e6)} µs`;
  if (seconds < 1) return `${(seconds * 1000).toPrecision(3)} ms`;
  if (seconds < 120) return `${seconds.toPrecision(3)} s`;
  return `${Math.round(seconds / 60)} min`;
}

/**
 * The time since a moment, as kubectl has it.
 *
 * @param {string} since RFC 3339
 * @param {number} now in milliseconds since 1970
 */
export function age(since, now) {
  const then = Date.parse(since);
  if (Number.isNaN(then)) return '–';
  const seconds = Math.max(0, Math.round((now - then) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 7200) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 172_800) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86_400)}d`;
}

/**
 * The state of a block: one that is reserved is a range of Services, and no node gets it.
 *
 * @param {string} state
 */
export function blockState(state) {
  return state === 'reserved' ? 'reserved for Services' : state;
}

/**
 * A count for sums and comparisons; rounded beyond 2^53-1.
 *
 * @param {Counts} counts
 * @param {StateName} state
 */
export function countOf(counts, state) {
  return Number(counts[state] ?? 0);
}

/**
 * A point in time to the millisecond.
 *
 * @param {string} time RFC 3339, in UTC
 */
export function instant(time) {
  return time.replace('T', ' ').replace(/(\.\d{3})\d*Z$/, '$1 UTC').replace(/Z$/, ' UTC');
}

/**
 * The purpose of a network, and its name if it has one of its own.
 *
 * @param {{role: string, name: string}} network
 */
export function networkName({ role, name }) {
  return name === '' || name === role ? role : `${role}, ${name}`;
}
