// Pods, read page by page: the page never holds all of them.

/** @import { Pod, PodList } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { ago } from './ages.js';
import { isAbort } from './api.js';
import { button, h, replace } from './dom.js';
import { errorBox } from './messages.js';
import { parse } from './prefix.js';
import { addressLink, nodeLink, podLink } from './route.js';
import { throttled } from './signal.js';
import { DataTable } from './table.js';

const PAGE = 500;

/**
 * @param {Context} context
 * @returns {View}
 */
export function pods({ api, feed, end, isLive, pause }) {
  const problem = h('div', {});
  const more = h('p', { class: 'controls' });
  const table = podTable(isLive);
  /** The tokens of the pages so far. @type {(string | undefined)[]} */
  let starts = [undefined];
  let field = '';
  const read = async () => {
    const query = new URLSearchParams({ limit: String(PAGE) });
    const from = starts.at(-1);
    if (from) query.set('continue', from);
    if (field) query.set('fieldSelector', field);
    try {
      /** @type {PodList} */
      const list = await api.json(`/api/v1/pods?${query}`, end);
      replace(problem);
      table.update(list.items.map(rowOf), field ? 'This selection has no pods.' : undefined);
      turns(list.metadata.continue);
    } catch (error) {
      if (!isAbort(error)) replace(problem, errorBox(error));
    }
  };
  const turns = (/** @type {string | undefined} */ next) => {
    const to = (/** @type {typeof starts} */ pages) => () => {
      starts = pages;
      void read();
    };
    replace(
      more,
      starts.length > 1 && button('First pods', to([undefined])),
      starts.length > 1 && button('Previous pods', to(starts.slice(0, -1))),
      !!next && button('More pods', to([...starts, next])),
      starts.length > 1 && isLive && h('span', { class: 'quiet' }, 'Only the first page is live.'),
    );
  };
  const select = fieldSelect((selected) => {
    field = selected;
    starts = [undefined];
    void read();
  });
  table.controls.prepend(select);
  // The other pages are those of the moment when the first one was read.
  const refresh = throttled(pause, end, async () => {
    if (starts.length === 1) await read();
  });
  const element = h('div', {}, problem, table.element, more);
  return { title: 'Pods', element, start: () => feed.cluster.follow(end, refresh) };
}

/** The selections that the server makes, among all pods. @type {[string, string][]} */
const FIELDS = [
  ['all pods', ''],
  ['running', 'status.phase=Running'],
  ['pending', 'status.phase=Pending'],
  ['without node', 'spec.nodeName='],
  ['failed', 'status.phase=Failed'],
  ['in default', 'metadata.namespace=default'],
];

/** @param {(selector: string) => void} onChange */
function fieldSelect(onChange) {
  const options = FIELDS.map(([name, value]) => h('option', { value }, name));
  const select = h('select', { 'aria-label': 'Which pods' }, ...options);
  select.addEventListener('change', () => onChange(select.value));
  return select;
}

/**
 * @typedef {object} PodRow
 * @property {string} key
 * @property {string} state
 * @property {string} node
 * @property {string} ip
 * @property {string} created
 */

/**
 * @param {Pod} pod
 * @returns {PodRow}
 */
function rowOf(pod) {
  const { metadata, spec, status } = pod;
  return {
    key: `${metadata.namespace}/${metadata.name}`,
    state: stateOf(pod),
    node: spec?.nodeName ?? '',
    ip: status?.podIPs?.map(({ ip }) => ip).join(' ') ?? status?.podIP ?? '',
    created: metadata.creationTimestamp ?? '',
  };
}

/** @param {Pod} pod */
export function stateOf({ metadata, status }) {
  if (metadata.deletionTimestamp) return 'Terminating';
  return status?.reason || status?.phase || 'Unknown';
}

/** @param {boolean} isLive */
function podTable(isLive) {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<PodRow>} */ ({
      caption: 'Pods',
      columns: [
        {
          title: 'Pod',
          value: ({ key }) => key,
          show: ({ key }) => h('a', { href: podLink(key) }, key),
        },
        { title: 'State', value: ({ state }) => state },
        {
          title: 'Address',
          value: ({ ip }) => ip,
          isCode: true,
        },
        {
          title: 'Node',
          value: ({ node }) => node,
          show: ({ node }) => (node ? h('a', { href: nodeLink(node) }, node) : ''),
        },
        { title: 'Age', value: ({ created }) => created, show: ({ created }) => ago(created) },
      ],
      key: ({ key }) => key,
      empty: isLive
        ? 'No pods: podplane run web --replicas 3 starts some.'
        : 'There are no pods at this moment.',
      filter: { label: 'Filter these pods', text: (row) => Object.values(row).join(' ') },
    }),
  );
}

/**
 * An address as a link to its place on the map.
 *
 * @param {string} ip
 */
export function placeOf(ip) {
  const address = parse(ip);
  return address ? h('a', { href: addressLink(address, null), class: 'code' }, ip) : ip;
}
