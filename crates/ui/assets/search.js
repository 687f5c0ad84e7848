// The field that goes to an address, a prefix, a node or a pod.

/** @import { PodList } from '../types/contract.js' */
/** @import { Api } from './api.js' */
/** @import { ClusterFeed } from './cluster.js' */

import { isAbort } from './api.js';
import { h } from './dom.js';
import { contains, format, isSingle, parse } from './prefix.js';
import { addressLink, go, mapLink, nodeLink, podLink } from './route.js';

/** The field takes the focus at this key. */
const KEY = '/';

/**
 * @param {Api} api
 * @param {ClusterFeed} feed
 * @param {AbortSignal} end
 */
export function search(api, feed, end) {
  const attributes = {
    type: 'search',
    'aria-label': 'Go to',
    placeholder: 'IP, node, ns/pod  ( / )',
  };
  const input = h('input', { ...attributes, autocomplete: 'off', name: 'to' });
  const form = h('form', { role: 'search', novalidate: true }, input);
  const complain = (/** @type {string} */ text) => {
    input.setCustomValidity(text);
    input.reportValidity();
  };
  input.addEventListener('input', () => input.setCustomValidity(''));
  form.addEventListener('submit', async (event) => {
    event.preventDefault();
    const text = input.value.trim();
    if (!text) return;
    try {
      const to = targetOf(feed, text) ?? (await podCalled(api, text, end));
      if (to) {
        input.value = '';
        input.setCustomValidity('');
        go(to);
      } else {
        complain(`No node and no pod is called ${text}.`);
      }
    } catch (error) {
      if (!isAbort(error)) complain(error instanceof Error ? error.message : String(error));
    }
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
 * @returns {string | null} null for a name that is not a node's
 */
function targetOf(feed, text) {
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
  return text.includes('/') ? podLink(text) : null;
}

/**
 * The first pod of that name, in any namespace.
 *
 * @param {Api} api
 * @param {string} name
 * @param {AbortSignal} end
 */
async function podCalled(api, name, end) {
  const query = new URLSearchParams({ fieldSelector: `metadata.name=${name}` });
  /** @type {PodList} */
  const { items } = await api.json(`/api/v1/pods?${query}`, end);
  return items[0] ? podLink(`${items[0].metadata.namespace}/${name}`) : null;
}
