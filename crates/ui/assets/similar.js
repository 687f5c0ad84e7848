// Names that are nearly another one.

/** The most names that are suggested. */
const MOST = 5;

/**
 * The names that differ from another one in few characters, the nearest first.
 *
 * @param {string} name
 * @param {Iterable<string>} names
 */
export function similar(name, names) {
  const most = Math.max(2, Math.floor(name.length / 4));
  const near = [...names]
    .map((other) => ({ other, apart: distance(name, other) }))
    .filter(({ apart }) => apart <= most);
  near.sort((a, b) => a.apart - b.apart || a.other.localeCompare(b.other, 'en', { numeric: true }));
  return near.slice(0, MOST).map(({ other }) => other);
}

/**
 * Levenshtein's distance.
 *
 * @param {string} a
 * @param {string} b
 */
function distance(a, b) {
  let row = Array.from({ length: b.length + 1 }, (_, index) => index);
  for (let i = 0; i < a.length; i += 1) {
    const next = [i + 1];
    for (let j = 0; j < b.length; j += 1) {
      const replaced = (row[j] ?? 0) + (a[i] === b[j] ? 0 : 1);
      next.push(Math.min(replaced, (row[j + 1] ?? 0) + 1, (next[j] ?? 0) + 1));
    }
    row = next;
  }
  return row[b.length] ?? 0;
}
