// Views and their addresses, in the fragment.

/**
 * @typedef {object} Route
 * @property {string[]} path the parts, decoded
 * @property {URLSearchParams} query
 */

/**
 * @param {string} fragment
 * @returns {Route}
 */
export function parse(fragment) {
  const [path = '', query = ''] = fragment.replace(/^#\/?/, '').split('?', 2);
  const parts = path.split('/').filter((part) => part !== '');
  return { path: parts.map(decoded), query: new URLSearchParams(query) };
}

/** @param {string} part */
function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part;
  }
}

/**
 * @param {string[]} path
 * @param {Record<string, string | null | undefined>} [query]
 */
export function link(path, query = {}) {
  const values = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value) values.set(name, value);
  }
  // Slashes and colons of prefixes stay readable.
  const text = values.toString().replaceAll('%2F', '/').replaceAll('%3A', ':');
  const fragment = `#/${path.map(encodeURIComponent).join('/')}`;
  return text ? `${fragment}?${text}` : fragment;
}

/**
 * @param {string | null | undefined} network
 * @param {string | null | undefined} prefix
 */
export function mapLink(network, prefix) {
  return link(['map'], { network, prefix });
}

/** @param {string} name */
export function nodeLink(name) {
  return link(['node', name]);
}

/** @param {string} key `NAMESPACE/NAME` */
export function podLink(key) {
  return link(['pod', ...key.split('/', 2)]);
}

/**
 * Goes to a view.
 *
 * @param {string} fragment
 */
export function go(fragment) {
  location.hash = fragment;
}
