// The findings, each with its place on the map.

/** @import { Check, Finding, FindingPlace } from '../types/contract.js' */
/** @import { Context, View } from './views.js' */

import { h, section, setText } from './dom.js';
import { hint } from './messages.js';
import { around, format, isSingle, parse, shortest } from './prefix.js';
import { addressLink, mapLink, nodeLink, podLink } from './route.js';
import { DataTable } from './table.js';
import { counted, number } from './words.js';

/** The length of the prefix that is shown around a finding, so that its neighbours are seen. */
const AROUND = { 4: 24, 6: 112 };

/** The places of a finding that are links; the others are counted. */
const MOST_PLACES = 8;

/** The worst first. */
const ORDER = { error: 0, warning: 1, info: 2 };

/**
 * @param {Context} context
 * @returns {View}
 */
export function findings({ feed, end }) {
  const table = findingTable();
  const checks = checkTable();
  const note = h('p', { class: 'quiet' });
  const made = h('p', { class: 'quiet' });
  feed.cluster.follow(end, ({ isAudited, findings: found, findingsTotal, checks: all }) => {
    if (!isAudited) {
      setText(note, 'The first audit is under way.');
      return;
    }
    table.update(found);
    checks.update(all);
    const isPart = findingsTotal > found.length;
    setText(note, isPart ? `The first ${found.length} of ${number(findingsTotal)} findings.` : '');
    const count = all.filter(({ isMade }) => isMade).length;
    setText(made, `${count} of ${counted(all.length, 'check')} made.`);
  });
  const more = hint(
    'podplane audit also reads the objects of other networks, writes the repair, and with --history checks every revision:',
    'podplane audit',
    'podplane audit --history',
  );
  const element = h('div', {}, note, table.element, section('Checks', made, checks.element, more));
  return { title: 'Findings', element };
}

function findingTable() {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<Finding>} */ ({
      caption: 'Findings',
      columns: [
        {
          title: 'Severity',
          value: ({ severity }) => ORDER[severity],
          show: ({ severity }) => h('span', { class: `finding ${severity}` }, severity),
        },
        {
          title: 'Places',
          value: ({ places }) => places?.[0]?.prefix ?? '',
          show: (finding) => placeLinks(finding),
          isCode: true,
        },
        {
          title: 'Finding',
          value: ({ message }) => message,
          show: ({ message, repair, code }) =>
            h(
              'div',
              { class: 'prose' },
              h('div', {}, message),
              h('div', { class: 'quiet' }, h('span', { class: 'code' }, code), `: ${repair}`),
            ),
        },
        {
          title: 'Pods',
          value: ({ pods }) => pods?.join(' ') ?? '',
          show: ({ pods }) => links(pods ?? [], podLink),
        },
        {
          title: 'Nodes',
          value: ({ nodes }) => nodes?.join(' ') ?? '',
          show: ({ nodes }) => links(nodes ?? [], nodeLink),
        },
      ],
      key: (finding) => JSON.stringify(finding),
      empty: 'Nothing is wrong.',
      filter: {
        label: 'Filter findings',
        text: ({ places = [], ...finding }) =>
          [...Object.values(finding), ...places.map(({ prefix }) => prefix)].flat().join(' '),
      },
    }),
  );
}

function checkTable() {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<Check>} */ ({
      caption: 'Checks',
      columns: [
        { title: 'Rule', value: ({ code }) => code, isCode: true },
        { title: 'Finds', value: ({ meaning }) => meaning },
        { title: 'Check', value: ({ state }) => state, show: checkState },
      ],
      key: ({ code }) => code,
      empty: 'Nothing has been checked yet.',
    }),
  );
}

/**
 * The state in the words of the audit; only a check that misses objects needs attention.
 *
 * @param {Check} check
 */
function checkState({ state }) {
  const isIncomplete = state.startsWith('incomplete: ');
  return h('span', { class: isIncomplete && 'finding warning' }, state);
}

/**
 * The places of a finding, each as a link to the map.
 *
 * @param {Finding} finding
 */
export function placeLinks({ places = [] }) {
  const shown = places.slice(0, MOST_PLACES);
  const all = shown.map((place) =>
    h('span', { class: 'holder' }, h('a', { href: placeOf(place) }, shortest(place.prefix))),
  );
  const left = places.length - shown.length;
  return h('span', { class: 'places' }, ...all, left > 0 && ` and ${number(left)} more`);
}

/**
 * The link to a place of a finding on the map, with its neighbours.
 *
 * @param {FindingPlace} place
 */
function placeOf({ prefix, network }) {
  const place = parse(prefix);
  if (!place) return mapLink(network, prefix);
  if (isSingle(place)) return addressLink(place, network);
  const least = network ? (parse(network)?.length ?? 0) : 0;
  const length = Math.max(AROUND[place.family], least);
  return mapLink(network, place.length > length ? format(around(place, length)) : prefix);
}

/**
 * @param {string[]} names
 * @param {(name: string) => string} link
 */
function links(names, link) {
  const parts = names.map((name) =>
    h('span', { class: 'holder' }, h('a', { href: link(name) }, name)),
  );
  return h('span', {}, ...parts);
}
