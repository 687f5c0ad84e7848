// The cluster at a glance: the map, the numbers, and what needs attention.

/** @import { Cluster } from './cluster.js' */
/** @import { Context, View } from './views.js' */
/** @import { Network } from '../types/contract.js' */

import { CellDetails } from './details.js';
import { h, replace, section, setText } from './dom.js';
import { placeOf } from './findings.js';
import { AddressMap, Legend } from './map.js';
import { TableBehind } from './map-view.js';
import { hint } from './messages.js';
import { link, mapLink } from './route.js';
import { inUse } from './states.js';
import { countOf, counted, number } from './words.js';

/** The networks beside the map that have a picture. */
const MOST_BESIDE = 4;

/**
 * @param {Context} context
 * @returns {View}
 */
export function overview(context) {
  const { api, end, feed } = context;
  const element = h('div', {});
  const figures = h('ul', { class: 'figures', 'aria-label': 'Numbers' });
  const attention = h('div', {});
  const beside = new Beside(context);
  const details = new CellDetails(api, end);
  const legend = new Legend();
  const title = h('a', { href: link(['map']), class: 'code' });
  const table = new TableBehind(context);
  const map = new AddressMap(context, {
    onScene: (scene) => {
      legend.show(scene);
      table.is(scene);
      setText(title, scene.view.prefix);
    },
    onCell: (scene, cell, found) => details.show(scene, cell, found),
  });
  const picture = h(
    'div',
    { class: 'with-aside' },
    h(
      'div',
      {},
      h('div', { class: 'bar' }, title, table.toggle),
      h('div', { class: 'maps' }, map.element, beside.element),
      table.element,
    ),
    h(
      'aside',
      { 'aria-label': 'Details of the map' },
      section('At the cursor', details.element),
      section('States', legend.element),
      attention,
    ),
  );
  let shown = '';
  const show = (/** @type {Cluster} */ cluster) => {
    if (!cluster.isKnown) return;
    replace(figures, ...figuresOf(cluster));
    const { networks, waiting, findings } = cluster;
    const content = JSON.stringify([waiting, findings.slice(0, 5), cluster.nodes.size === 0]);
    if (content !== shown) replace(attention, ...attentionOf(cluster));
    shown = content;
    beside.show(networks.slice(1));
    const hasMap = networks.length > 0;
    if (hasMap && !picture.isConnected) {
      replace(element, figures, emptiness(cluster), picture);
      map.start();
    } else if (!hasMap) {
      replace(element, figures, emptiness(cluster), attention);
    }
    const empty = element.querySelector('.hint');
    const wanted = emptiness(cluster);
    if (empty && !wanted) empty.remove();
    if (empty && wanted && empty.textContent !== wanted.textContent) empty.replaceWith(wanted);
  };
  return { title: 'Overview', element, start: () => feed.cluster.follow(end, show) };
}

/** @param {Cluster} cluster */
function figuresOf({ pods, nodes, findingsTotal, networks }) {
  let [ready, used, capacity] = [0, 0, 0];
  for (const node of nodes.values()) {
    if (node.ready) ready += 1;
    used += node.used;
    capacity += node.capacity ?? 0;
  }
  const free = networks[0] ? countOf(networks[0].counts, 'unassigned') : 0;
  return [
    figure(number(pods.total), 'pods', `${number(pods.running)} running`, link(['pods'])),
    figure(number(pods.waiting), 'waiting', 'for a node or an address', link(['waiting'])),
    figure(number(nodes.size), 'nodes', `${number(ready)} ready`, link(['nodes'])),
    figure(number(used), 'in use', `of ${number(capacity)} of the blocks`, link(['nodes'])),
    networks[0] &&
      figure(number(free), 'in no block', networks[0].cidr, mapLink(networks[0].cidr, null)),
    figure(number(findingsTotal), 'findings', 'of the audit', link(['findings'])),
  ].filter((one) => one !== undefined);
}

/**
 * @param {string} value
 * @param {string} name
 * @param {string} note
 * @param {string} href
 */
function figure(value, name, note, href) {
  return h(
    'li',
    {},
    h('a', { href }, h('strong', {}, value), h('span', {}, name), h('small', {}, note)),
  );
}

/** @param {Cluster} cluster */
function attentionOf({ waiting, findings, findingsTotal }) {
  const groups = waiting
    .slice(0, 5)
    .map(({ reason, count }) =>
      h('li', {}, h('a', { href: link(['waiting']) }, reason), ` ${counted(count, 'pod')}`),
    );
  const found = findings.slice(0, 5).map((finding) => {
    const { message, severity, prefix } = finding;
    const place = prefix && h('a', { href: placeOf(finding), class: 'code' }, prefix);
    return h('li', { class: `finding ${severity}` }, place, ` ${message}`);
  });
  return [
    groups.length > 0 && section('Waiting', h('ul', { class: 'plain' }, ...groups)),
    found.length > 0 &&
      section(
        'Findings',
        h('ul', { class: 'plain' }, ...found),
        findingsTotal > found.length &&
          h('a', { href: link(['findings']) }, `all ${number(findingsTotal)} findings`),
      ),
  ];
}

/**
 * The other networks, as small pictures beside the map.
 */
class Beside {
  element = h('div', { class: 'beside' });
  #context;
  /** By CIDR. @type {Map<string, {element: HTMLElement, note: HTMLElement}>} */ #pictures =
    new Map();
  #shown = '';

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
  }

  /** @param {Network[]} networks */
  show(networks) {
    const shown = networks.slice(0, MOST_BESIDE);
    for (const { cidr, role, name, counts } of shown) {
      const picture = this.#pictures.get(cidr) ?? this.#picture(cidr);
      setText(picture.note, `${`${role} ${name}`.trim()}, ${number(inUse(counts))} in use`);
    }
    const cidrs = networks.map(({ cidr }) => cidr).join();
    if (cidrs === this.#shown) return;
    this.#shown = cidrs;
    const pictures = shown.map(({ cidr }) => this.#pictures.get(cidr)?.element);
    const left = networks.length - shown.length;
    const more =
      left > 0 && h('a', { href: link(['map']) }, `and ${counted(left, 'more network')}`);
    replace(this.element, ...pictures, more);
  }

  /** @param {string} cidr */
  #picture(cidr) {
    const map = new AddressMap(this.#context, { network: cidr, isSmall: true });
    const note = h('small', {});
    const href = mapLink(cidr, cidr);
    const title = h('span', { class: 'code' }, cidr);
    const element = h('a', { href, class: 'beside-link' }, title, note, map.element);
    const picture = { element, note };
    this.#pictures.set(cidr, picture);
    map.start();
    return picture;
  }
}

/** @param {Cluster} cluster */
function emptiness({ nodes, pods }) {
  if (nodes.size === 0) {
    return hint(
      'This cluster has no nodes yet. A node brings its block of addresses. Add one:',
      'podplane node add node-0',
    );
  }
  if (pods.total === 0) {
    return hint(
      'This cluster has no pods yet. Start some:',
      'podplane run web --replicas 3 --wait',
    );
  }
  return null;
}
