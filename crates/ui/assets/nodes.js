// All nodes with their blocks.

/** @import { NodeRow } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { h } from './dom.js';
import { mapLink, nodeLink } from './route.js';
import { DataTable } from './table.js';
import { number } from './words.js';

/** @type {Record<string, (node: NodeRow) => boolean>} */
const SELECTIONS = {
  'all nodes': () => true,
  'not ready': ({ ready }) => !ready,
  unschedulable: ({ unschedulable }) => unschedulable,
  'without block': ({ blocks }) => blocks.length === 0,
  full: ({ used, capacity }) => capacity !== null && capacity > 0 && used >= capacity,
  'with waiting pods': ({ waiting }) => waiting > 0,
  'with orphans': ({ orphaned }) => orphaned > 0,
};

/**
 * @param {Context} context
 * @returns {View}
 */
export function nodes({ feed, end, isLive }) {
  const table = new DataTable(
    /** @type {import('./table.js').TableOptions<NodeRow>} */ ({
      caption: 'Nodes',
      columns: [
        {
          title: 'Name',
          value: ({ name }) => name,
          show: ({ name }) => h('a', { href: nodeLink(name) }, name),
        },
        { title: 'State', value: stateOf },
        {
          title: 'Blocks',
          value: ({ blocks }) => blocks[0]?.cidr ?? '',
          show: ({ blocks }) => blockLinks(blocks),
          isCode: true,
        },
        { title: 'Fill', value: fillOf, show: (node) => fillBar(node) },
        {
          title: 'In use',
          value: ({ used }) => used,
          show: ({ used }) => number(used),
          isNumeric: true,
        },
        {
          title: 'Capacity',
          value: ({ capacity }) => capacity ?? -1,
          show: ({ capacity }) => number(capacity),
          isNumeric: true,
        },
        {
          title: 'Orphaned',
          value: ({ orphaned }) => orphaned,
          show: ({ orphaned }) => number(orphaned),
          isNumeric: true,
        },
        {
          title: 'Waiting',
          value: ({ waiting }) => waiting,
          show: ({ waiting }) => number(waiting),
          isNumeric: true,
        },
        {
          title: 'Pods',
          value: ({ pods }) => pods,
          show: ({ pods }) => number(pods),
          isNumeric: true,
        },
      ],
      key: ({ name }) => name,
      empty: isLive
        ? 'There are no nodes yet: podplane node add node-0 adds one.'
        : 'There are no nodes at this moment.',
      sortedBy: 0,
      filter: {
        label: 'Filter by name, block or state',
        text: (node) =>
          [node.name, stateOf(node), ...node.blocks.map(({ cidr }) => cidr)].join(' '),
      },
    }),
  );
  const options = Object.keys(SELECTIONS).map((name) => h('option', {}, name));
  const select = h('select', { 'aria-label': 'Which nodes' }, ...options);
  const show = () => {
    const { isKnown, nodes: all } = feed.cluster.value;
    const isSelected = SELECTIONS[select.value] ?? (() => true);
    if (!isKnown) return;
    const empty = all.size > 0 ? 'This selection has no nodes.' : undefined;
    table.update([...all.values()].filter(isSelected), empty);
  };
  select.addEventListener('change', show);
  table.controls.prepend(select);
  feed.cluster.follow(end, show);
  return { title: 'Nodes', element: table.element };
}

/** @param {NodeRow} node */
export function stateOf({ ready, unschedulable }) {
  return `${ready ? 'ready' : 'not ready'}${unschedulable ? ', unschedulable' : ''}`;
}

/** @param {NodeRow['blocks']} blocks */
export function blockLinks(blocks) {
  const links = blocks.map(({ cidr, state }) =>
    h(
      'span',
      { class: 'holder' },
      h('a', { href: mapLink(null, cidr) }, cidr),
      state === 'assigned' ? '' : ` ${state}`,
    ),
  );
  return h('span', {}, ...(links.length > 0 ? links : ['none']));
}

/**
 * The nodes that have a block, of which there should be one.
 *
 * @param {{node: string | null, otherNodes?: string[]}} block
 */
export function nodesOf({ node, otherNodes = [] }) {
  return [...(node === null ? [] : [node]), ...otherNodes];
}

/** @param {string[]} names */
export function nodeLinks(names) {
  const links = names.map((name) =>
    h('span', { class: 'holder' }, h('a', { href: nodeLink(name) }, name)),
  );
  return h('span', {}, ...links);
}

/** @param {NodeRow} node */
function fillOf({ used, capacity }) {
  return capacity ? used / capacity : 0;
}

/**
 * The part in use as a bar; of a block of IPv6, whose part is always next to nothing, the number.
 *
 * @param {NodeRow} node
 */
export function fillBar(node) {
  const percent = Math.round(100 * fillOf(node));
  if (percent === 0 && node.used > 0) return h('span', {}, `${number(node.used)} in use`);
  const bar = h('span', { class: 'bar-fill', 'aria-hidden': 'true' }, h('span', {}));
  const inner = bar.firstElementChild;
  if (inner instanceof HTMLElement) inner.style.width = `${Math.min(100, percent)}%`;
  bar.classList.toggle('high', percent >= 90);
  return h('span', { class: 'fill' }, bar, ` ${percent}%`);
}
