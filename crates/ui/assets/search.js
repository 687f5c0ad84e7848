// The field that goes to an address, a prefix, a node or a pod.

/** @import { ClusterFeed } from './cluster.js' */

import { h } from './dom.js';
import { contains, format, isSingle, parse } from './prefix.js';
import { addressLink, go, link, mapLink, nodeLink, podLink } from './route.js';

/** The field takes the focus at this key. */
const KEY = '/';

/**
 * @param {ClusterFeed} feed
 * @param {AbortSignal} end
 */
export function search(feed, end) {
  const attributes = {
    type: 'search',
    'aria-label': 'Go to',
    placeholder: 'IP, node, ns/pod  ( / )',
  };
  const input = h('input', { ...attributes, autocomplete: 'off', name: 'to' });
  const form = h('form', { role: 'search' }, input);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    const to = targetOf(feed, input.value.trim());
    if (!to) return;
    input.value = '';
    go(to);
  });
  document.addEventListener(
    'keydown',
    (event) => {
      const isTyping =
        event.target instanceof HTMLElement && event.target.matches('input, select, textarea');
      if (event.key !== KEY || isTyping || event.ctrlKey || event.metaKey) return;
      event.preventDefault();
      input.focus();
    },
    { signal: end },
  );
  return form;
}

/**
 * @param {ClusterFeed} feed
 * @param {string} text
 */
function targetOf(feed, text) {
  if (!text) return null;
  const prefix = parse(text);
  const { networks, nodes } = feed.cluster.value;
  if (prefix) {
    const network = networks.find(({ cidr }) => {
      const outer = parse(cidr);
      return outer !== null && contains(outer, prefix);
    });
    if (isSingle(prefix)) return addressLink(prefix, network?.cidr);
    return mapLink(network?.cidr, format(prefix));
  }
  if (nodes.has(text)) return nodeLink(text);
  return text.includes('/') ? podLink(text) : link(['pod', 'default', text]);
}
