// Arithmetic of prefixes, for both families.

/**
 * @typedef {object} Prefix
 * @property {4 | 6} family
 * @property {bigint} first the first address
 * @property {number} length
 */

const BITS = { 4: 32, 6: 128 };

/**
 * @param {string} text an address or a prefix
 * @returns {Prefix | null} null if it is neither
 */
export function parse(text) {
  const [address = '', length, ...more] = text.trim().split('/');
  const family = address.includes(':') ? 6 : 4;
  const first = family === 6 ? parseV6(address) : parseV4(address);
  if (first === null || more.length > 0) return null;
  if (length === undefined) return { family, first, length: BITS[family] };
  const bits = /^\d{1,3}$/.test(length) ? Number(length) : NaN;
  return bits <= BITS[family] ? { family, first, length: bits } : null;
}

/** @param {string} text */
function parseV4(text) {
  const parts = text.split('.');
  if (parts.length !== 4) return null;
  let value = 0n;
  for (const part of parts) {
    if (!/^\d{1,3}$/.test(part) || Number(part) > 255) return null;
    value = (value << 8n) | BigInt(part);
  }
  return value;
}

/** @param {string} text */
function parseV6(text) {
  const halves = text.split('::');
  if (halves.length > 2) return null;
  const groups = halves.map((half) => (half === '' ? [] : half.split(':')));
  const [head = [], tail = []] = groups;
  const missing = 8 - head.length - tail.length;
  if (halves.length === 2 ? missing < 1 : missing !== 0) return null;
  let value = 0n;
  for (const group of [...head, ...Array(missing).fill('0'), ...tail]) {
    if (!/^[0-9a-f]{1,4}$/i.test(group)) return null;
    value = (value << 16n) | BigInt(`0x${group}`);
  }
  return value;
}

/** @param {Prefix} prefix */
export function isSingle(prefix) {
  return prefix.length === BITS[prefix.family];
}

/**
 * The last address.
 *
 * @param {Prefix} prefix
 */
export function last({ family, first, length }) {
  return first + (1n << BigInt(BITS[family] - length)) - 1n;
}

/**
 * @param {Prefix} outer
 * @param {Prefix} inner
 */
export function contains(outer, inner) {
  return (
    outer.family === inner.family &&
    outer.length <= inner.length &&
    outer.first <= inner.first &&
    inner.first <= last(outer)
  );
}

/**
 * The prefix of a length around another.
 *
 * @param {Prefix} prefix
 * @param {number} length
 * @returns {Prefix}
 */
export function around({ family, first }, length) {
  const host = BigInt(BITS[family] - length);
  return { family, first: (first >> host) << host, length };
}

/** @param {Prefix} prefix */
export function format({ family, first, length }) {
  return `${family === 4 ? formatV4(first) : formatV6(first)}/${length}`;
}

/**
 * The text of a prefix, without the length if it is a single address.
 *
 * @param {string} text
 */
export function shortest(text) {
  const prefix = parse(text);
  return prefix && isSingle(prefix) ? text.replace(/\/\d+$/, '') : text;
}

/** @param {bigint} value */
function formatV4(value) {
  return [24n, 16n, 8n, 0n].map((shift) => String((value >> shift) & 255n)).join('.');
}

/**
 * As RFC 5952 has it, which is how browsers write the host of an address.
 *
 * @param {bigint} value
 */
function formatV6(value) {
  const groups = Array.from({ length: 8 }, (_, index) =>
    ((value >> BigInt(16 * (7 - index))) & 0xffffn).toString(16),
  );
  return new URL(`http://[${groups.join(':')}]`).hostname.slice(1, -1);
}

/** The bits of a step of the zoom: a sixteenth of the addresses, or the groups of IPv6. */
const STEP = { 4: 4, 6: 16 };

/**
 * The prefixes between a network and a prefix in it, both included.
 *
 * @param {Prefix} network
 * @param {Prefix} prefix
 */
export function path(network, prefix) {
  const lengths = [];
  for (let length = network.length; length < prefix.length; length += STEP[prefix.family]) {
    lengths.push(length);
  }
  return [...lengths, prefix.length].map((length) => around(prefix, length));
}

/**
 * The prefix one step further in, around a cell.
 *
 * @param {Prefix} view
 * @param {Prefix} cell
 */
export function stepInto(view, cell) {
  return around(cell, Math.min(view.length + STEP[view.family], cell.length));
}
