// The cluster at a glance: the map, the numbers, and what needs attention.

/** @import { Cluster } from './cluster.js' */
/** @import { Context, View } from './views.js' */
/** @import { Network } from '../types/contract.js' */

import { CellDetails } from './details.js';
import { h, isChanged, replace, section, setText } from './dom.js';
import { placeLinks } from './findings.js';
import { AddressMap, BlockList, Legend } from './map.js';
import { TableBehind } from './map-view.js';
import { hint } from './messages.js';
import { contains, parse } from './prefix.js';
import { link, mapLink } from './route.js';
import { inUse, usableIn } from './states.js';
import { counted, networkName, number } from './words.js';

/** The networks beside the map that have a picture. */
const MOST_BESIDE = 4;
/** The waiting groups, and the findings, that are named. */
const MOST_LINES = 5;

/**
 * @param {Context} context
 * @returns {View}
 */
export function overview(context) {
  const { api, end, feed, isLive } = context;
  const element = h('div', {});
  const figures = new Figures();
  const attention = h('div', {});
  const beside = new Beside(context);
  const details = new CellDetails(api, end);
  const legend = new Legend();
  const blocks = new BlockList();
  const title = h('a', { href: link(['map']), class: 'code' });
  const table = new TableBehind(context);
  const map = new AddressMap(context, {
    onScene: (scene) => {
      legend.show(scene);
      blocks.show(scene);
      table.is(scene);
      setText(title, scene.view.prefix);
    },
    onCell: (scene, cell, found) => details.show(scene, cell, found),
  });
  const aside = h(
    'aside',
    { 'aria-label': 'Details of the map' },
    section('At the cursor', details.element),
    section('States', legend.element),
    blocks.element,
  );
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
    aside,
  );
  const advice = h('div', {});
  let hasStarted = false;
  const show = (/** @type {Cluster} */ cluster) => {
    if (!cluster.isKnown) return;
    figures.show(cluster);
    const { networks, waiting, findings } = cluster;
    const groups = waiting.map(({ reason, count }) => [reason, count]);
    if (isChanged(attention, [groups, findings.slice(0, MOST_LINES), cluster.findingsTotal])) {
      replace(attention, ...attentionOf(cluster));
    }
    beside.show(networks.slice(1));
    const wanted = emptiness(cluster, isLive);
    if (isChanged(advice, wanted?.textContent ?? '')) replace(advice, wanted);
    const hasMap = networks.length > 0;
    const below = hasMap ? picture : attention;
    if (below.parentElement === element) return;
    replace(element, figures.element, advice, below);
    if (!hasMap) return;
    aside.append(attention);
    if (!hasStarted) map.start();
    hasStarted = true;
  };
  return { title: 'Overview', element, start: () => feed.cluster.follow(end, show) };
}

/** The numbers of the cluster, each with a link to its view. */
export class Figures {
  #pods = new Figure('pods', link(['pods']));
  #waiting = new Figure('waiting', link(['waiting']));
  #nodes = new Figure('nodes', link(['nodes']));
  #used = new Figure('in use', link(['nodes']));
  #unassigned = new Figure('in no block', link(['map']));
  #findings = new Figure('findings', link(['findings']));
  element = h(
    'ul',
    { class: 'figures', 'aria-label': 'Numbers' },
    this.#pods.element,
    this.#waiting.element,
    this.#nodes.element,
    this.#used.element,
    this.#unassigned.element,
    this.#findings.element,
  );

  /** @param {Cluster} cluster */
  show({ pods, nodes, isAudited, findings, findingsTotal, networks }) {
    const [first] = networks;
    let ready = 0;
    for (const node of nodes.values()) if (node.ready) ready += 1;
    let [used, usable] = [0, 0];
    for (const { counts } of podNetworks(networks)) {
      used += inUse(counts);
      usable += usableIn(counts);
    }
    this.#pods.show(pods.total, `${number(pods.running)} running`);
    this.#waiting.show(pods.waiting, 'for a node or address');
    this.#nodes.show(nodes.size, `${number(ready)} ready`);
    this.#used.show(used, `of ${number(usable)} IPs in blocks`);
    this.#unassigned.show(
      first?.counts.unassigned ?? 0,
      first ? `IPs of ${first.cidr}` : 'no network',
    );
    const errors = findings.filter(({ severity }) => severity === 'error').length;
    // The worst come first, and at most 200 come at all.
    const least = errors === findings.length && findingsTotal > errors ? 'at least ' : '';
    const verdict = errors > 0 ? `${least}${counted(errors, 'error')}` : 'no errors';
    this.#findings.show(isAudited ? findingsTotal : null, isAudited ? verdict : 'audit under way');
  }
}

/**
 * The networks of pods of the family of the first one. Those that lie within another of them are
 * left out, so that their addresses are counted once.
 *
 * @param {Network[]} networks
 */
function podNetworks(networks) {
  const ofPods = networks.flatMap((network) => {
    const prefix = network.role === 'pods' ? parse(network.cidr) : null;
    return prefix ? [{ ...network, prefix }] : [];
  });
  const family = ofPods[0]?.prefix.family;
  const ofFamily = ofPods.filter(({ prefix }) => prefix.family === family);
  return ofFamily.filter(
    (network) =>
      !ofFamily.some((other) => other !== network && contains(other.prefix, network.prefix)),
  );
}

class Figure {
  #value = h('strong', {});
  #note = h('small', {});
  element;

  /**
   * @param {string} name
   * @param {string} href
   */
  constructor(name, href) {
    this.element = h('li', {}, h('a', { href }, this.#value, h('span', {}, name), this.#note));
  }

  /**
   * @param {number | string | null} value `null` if it is not known yet
   * @param {string} note
   */
  show(value, note) {
    setText(this.#value, number(value));
    setText(this.#note, note);
  }
}

/** @param {Cluster} cluster */
function attentionOf({ waiting, findings, findingsTotal }) {
  const groups = waiting
    .slice(0, MOST_LINES)
    .map(({ reason, count }) =>
      h('li', {}, h('a', { href: link(['waiting']) }, reason), ` ${counted(count, 'pod')}`),
    );
  const found = findings.slice(0, MOST_LINES).map((finding) => {
    const { message, severity } = finding;
    const places = h('span', { class: 'code' }, placeLinks(finding));
    return h('li', { class: `finding ${severity}` }, places, ` ${message}`);
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

  /** @param {Context} context */
  constructor(context) {
    this.#context = context;
  }

  /** @param {Network[]} networks */
  show(networks) {
    const shown = networks.slice(0, MOST_BESIDE);
    for (const { cidr, counts, ...network } of shown) {
      const picture = this.#pictures.get(cidr) ?? this.#picture(cidr);
      setText(picture.note, `${networkName(network)}: ${number(inUse(counts))} in use`);
    }
    const cidrs = networks.map(({ cidr }) => cidr);
    if (!isChanged(this.element, cidrs)) return;
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

/**
 * @param {Cluster} cluster
 * @param {boolean} isLive
 */
function emptiness({ nodes, pods }, isLive) {
  if (!isLive) {
    return nodes.size === 0
      ? hint('There are no nodes at this moment of the recording. Move the slider, or press Play.')
      : null;
  }
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
