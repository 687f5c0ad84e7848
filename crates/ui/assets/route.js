// Views and their addresses, in the fragment.

/** @import { Prefix } from './prefix.js' */

import { around, format, parse as parsePrefix } from './prefix.js';

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

/** The length of the prefix that is shown around an address: each of 256 has a cell. */
const AROUND = { 4: 24, 6: 120 };

/**
 * The link to an address on the map, among its neighbours, where it is marked.
 *
 * @param {Prefix} address
 * @param {string | null | undefined} network
 */
export function addressLink(address, network) {
  const least = parsePrefix(network ?? '')?.length ?? 0;
  const prefix = around(address, Math.max(AROUND[address.family], least));
  const [ip] = format(address).split('/');
  return link(['map'], { network, prefix: format(prefix), address: ip });
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
