// Pods that wait, by reason.

/** @import { WaitingGroup } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { ago } from './ages.js';
import { h, isChanged, replace } from './dom.js';
import { hint } from './messages.js';
import { podLink } from './route.js';
import { counted } from './words.js';

/**
 * @param {Context} context
 * @returns {View}
 */
export function waiting({ feed, end }) {
  const element = h('div', {});
  feed.cluster.follow(end, (cluster) => {
    if (!cluster.isKnown) return;
    if (!isChanged(element, cluster.waiting)) return;
    const groups = cluster.waiting.map(groupPanel);
    replace(element, ...(groups.length > 0 ? groups : [hint('No pods are waiting.')]));
  });
  return { title: 'Waiting pods', element };
}

/** @param {WaitingGroup} group */
function groupPanel({ reason, message, count, pods }) {
  const items = pods.map(({ namespace, name, since }) => {
    const key = `${namespace}/${name}`;
    const waited = h('span', { class: 'quiet' }, ' ', ago(since));
    return h('li', {}, h('a', { href: podLink(key) }, key), waited);
  });
  const rest = count - pods.length;
  return h(
    'section',
    { class: 'panel' },
    h('h2', {}, reason, ' ', h('span', { class: 'badge' }, counted(count, 'pod'))),
    h('p', {}, message),
    h('ul', { class: 'columns' }, ...items),
    rest > 0 && h('p', { class: 'quiet' }, `and ${counted(rest, 'more pod')}`),
  );
}
