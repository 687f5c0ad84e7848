// A pod: its state, its trace, its events, the scheduler's explanation, and its YAML.

/** @import { Condition, Explanation, Pod, PodList } from '../types/contract.js' */
/** @import { Trace, WatchEvent } from '../types/contract.js' */
/** @import { Api } from './api.js' */
/** @import { Context, View } from './views.js' */

import { ago } from './ages.js';
import { ServerError, isAbort } from './api.js';
import { definitions, foldedSection, h, isChanged, replace, section } from './dom.js';
import { Events } from './events.js';
import { absent, errorBox, hint } from './messages.js';
import { placeOf, stateOf } from './pods.js';
import { link, nodeLink, podLink } from './route.js';
import { throttled } from './signal.js';
import { DataTable } from './table.js';
import { Waterfall } from './waterfall.js';
import { instant, number } from './words.js';
import { yamlPanel } from './yaml.js';

/** A watch of a pod is silent while nothing changes; it is opened anew after ten minutes. */
const LONGEST_WATCH = 600_000;

/** The pods among which a similar name is looked for. */
const MOST_NAMES = 500;

/** The time after which the steps of a pod that waits are read again, in milliseconds. */
const UNTIL_AGAIN = 5000;

/**
 * @param {Context} context
 * @returns {View}
 */
export function pod(context) {
  const [, namespace = '', name = ''] = context.route.path;
  const [within, called] = [namespace, name].map(encodeURIComponent);
  const path = `/api/v1/namespaces/${within}/pods/${called}`;
  const summary = `/summary/v1alpha1/pods/${within}/${called}`;
  const facts = h('div', {});
  const conditions = conditionTable();
  const events = new Events(context, { kind: 'Pod', namespace, name });
  const trace = new TracePanel(context, `${summary}/trace`);
  const explanation = new ExplanationPanel(context, `${summary}/explanation`);
  let lacked = '';
  /** @type {string | undefined} */
  let uid;
  /** @type {number | undefined} */
  let timer;
  const refresh = throttled(context.pause, context.end, async () => {
    clearTimeout(timer);
    await Promise.all([events.read(uid), trace.read(lacked), explanation.read()]);
    // An attempt that fails like the one before does not change the pod.
    const isTried = lacked !== '' && context.isLive && !context.end.aborted;
    if (isTried) timer = setTimeout(refresh, UNTIL_AGAIN);
  });
  context.end.addEventListener('abort', () => clearTimeout(timer), { once: true });
  const show = (/** @type {Pod} */ found) => {
    lacked = lackedBy(found);
    uid = found.metadata.uid;
    replace(facts, factsOf(found));
    frames.hidden = false;
    conditions.update(found.status?.conditions ?? []);
    refresh();
  };
  const frames = h(
    'div',
    { hidden: true },
    trace.element,
    section('Events', events.element),
    explanation.element,
    foldedSection('Conditions', conditions.element),
    yamlPanel(context.api, path, context.end),
  );
  const instead = (/** @type {HTMLElement} */ content) => {
    replace(facts, content);
    // A deleted pod leaves what was known of it; another moment has nothing.
    if (!context.isLive) frames.hidden = true;
  };
  const start = () => follow(context, namespace, name, show, instead);
  return { title: `Pod ${namespace}/${name}`, element: h('div', {}, facts, frames), start };
}

/**
 * Shows a pod now and after each change.
 *
 * @param {Context} context
 * @param {string} namespace
 * @param {string} name
 * @param {(pod: Pod) => void} show
 * @param {(content: HTMLElement) => void} instead
 */
function follow({ api, feed, end, isLive, pause }, namespace, name, show, instead) {
  const pods = `/api/v1/namespaces/${encodeURIComponent(namespace)}/pods`;
  let isShown = false;
  /** The number of the watch's events about the pod so far. */
  let heard = 0;
  const list = h('a', { href: link(['pods']) }, 'All pods');
  const key = `${namespace}/${name}`;
  const deleted = () => instead(hint(`The pod ${key} was deleted.`));
  const read = async () => {
    // What the watch says meanwhile is newer than the answer.
    const before = heard;
    try {
      /** @type {Pod} */
      const found = await api.json(`${pods}/${encodeURIComponent(name)}`, end);
      if (heard !== before) return;
      isShown = true;
      show(found);
    } catch (error) {
      if (isAbort(error) || heard !== before) return;
      if (isShown) {
        if (error instanceof ServerError && error.code === 404) deleted();
        return;
      }
      const others = await namesIn(api, pods, end);
      const keys = others.map((other) => `${namespace}/${other}`);
      if (!isShown) instead(absent(errorBox(error), key, keys, podLink, list));
    }
  };
  if (!isLive) {
    // A list says without an error that there is no such pod at the moment.
    const fieldSelector = `metadata.namespace=${namespace},metadata.name=${name}`;
    const path = `/api/v1/pods?${new URLSearchParams({ fieldSelector })}`;
    const readMoment = async () => {
      try {
        /** @type {PodList} */
        const { items } = await api.json(path, end);
        if (items[0]) show(items[0]);
        else {
          const problem = hint(`There is no pod ${key} at this moment.`);
          instead(absent(problem, key, [], podLink, list));
        }
      } catch (error) {
        if (!isAbort(error)) instead(errorBox(error));
      }
    };
    feed.cluster.follow(end, throttled(pause, end, readMoment));
    return;
  }
  const query = new URLSearchParams({ watch: 'true', fieldSelector: `metadata.name=${name}` });
  void api.follow(`${pods}?${query}`, end, {
    // A watch does not say that the pod does not exist, or was deleted while there was no watch.
    // Users who may only watch see what the watch has.
    onOpen: () => void read(),
    onDocument: (/** @type {WatchEvent<Pod>} */ event) => {
      if (event.type === 'BOOKMARK' || event.type === 'ERROR') return;
      heard += 1;
      isShown = true;
      if (event.type === 'DELETED') deleted();
      else show(event.object);
    },
    onLost: () => {},
    silence: LONGEST_WATCH,
    onRefused: (error) => instead(errorBox(error)),
  });
}

/**
 * The names of the first pods of a namespace; none if they cannot be read.
 *
 * @param {Api} api
 * @param {string} pods the path of the namespace's pods
 * @param {AbortSignal} end
 */
async function namesIn(api, pods, end) {
  try {
    /** @type {PodList} */
    const { items } = await api.json(`${pods}?limit=${MOST_NAMES}`, end);
    return items.map(({ metadata }) => metadata.name);
  } catch {
    return [];
  }
}

/** @param {Pod} pod */
function addressesOf({ status }) {
  return status?.podIPs?.map(({ ip }) => ip) ?? (status?.podIP ? [status.podIP] : []);
}

/**
 * What a pod still waits for; empty if it has its address, or needs none any more.
 *
 * @param {Pod} pod
 */
function lackedBy(pod) {
  const { metadata, spec, status } = pod;
  const hasEnded = status?.phase === 'Succeeded' || status?.phase === 'Failed';
  if (hasEnded || metadata.deletionTimestamp || addressesOf(pod).length > 0) return '';
  return spec?.nodeName ? 'an address' : 'a node';
}

/** @param {Pod} pod */
function factsOf(pod) {
  const { metadata, spec, status } = pod;
  const ips = addressesOf(pod);
  const links = ips.map((ip) => h('span', { class: 'holder' }, placeOf(ip)));
  const node = spec?.nodeName;
  const owners = metadata.ownerReferences?.map(({ kind, name }) => `${kind} ${name}`).join(', ');
  return definitions([
    ['State', stateOf(pod)],
    ['Address', links.length > 0 ? h('span', {}, ...links) : 'none'],
    ['Node', node ? h('a', { href: nodeLink(node) }, node) : 'none'],
    ['Age', ago(metadata.creationTimestamp)],
    ['Owner', owners],
    ['Message', status?.message],
    ['UID', metadata.uid && h('span', { class: 'code' }, metadata.uid)],
  ]);
}

function conditionTable() {
  return new DataTable(
    /** @type {import('./table.js').TableOptions<Condition>} */ ({
      caption: 'Conditions',
      columns: [
        { title: 'Type', value: ({ type }) => type },
        { title: 'Status', value: ({ status }) => status },
        { title: 'Reason', value: ({ reason }) => reason ?? '' },
        { title: 'Message', value: ({ message }) => message ?? '' },
        {
          title: 'Since',
          value: ({ lastTransitionTime }) => lastTransitionTime ?? '',
          show: ({ lastTransitionTime }) => ago(lastTransitionTime),
        },
      ],
      key: ({ type }) => type,
      empty: 'The pod has no conditions yet.',
    }),
  );
}

class TracePanel {
  #waterfall = new Waterfall();
  #content = h('div', {});
  element = section('Trace', this.#content);
  #context;
  #path;

  /**
   * @param {Context} context
   * @param {string} path
   */
  constructor(context, path) {
    this.#context = context;
    this.#path = path;
  }

  /** @param {string} lacked what the pod waits for */
  async read(lacked) {
    const { api, end, isLive } = this.#context;
    if (!isLive) {
      replace(this.#content, h('p', { class: 'quiet' }, 'A recording has no traces.'));
      return;
    }
    try {
      /** @type {Trace} */
      const trace = await api.json(this.#path, end);
      this.#waterfall.show(trace, lacked);
      if (this.#content.firstChild !== this.#waterfall.element) {
        replace(this.#content, this.#waterfall.element);
      }
    } catch (error) {
      if (isAbort(error)) return;
      const isAbsent = error instanceof ServerError && error.code === 404;
      replace(
        this.#content,
        isAbsent ? h('p', { class: 'quiet' }, error.message) : errorBox(error),
      );
    }
  }
}

/** The time from an attempt until its result is asked for, in milliseconds. */
const AFTER_ATTEMPT = 1000;

/**
 * What `podplane explain` prints beside its table.
 *
 * @param {Explanation} explanation
 */
function attemptFacts({ attempts, nextTrySeconds, suggestions, notConsidered }) {
  const list = (/** @type {string[]} */ texts) =>
    texts.length > 0 ? h('ul', { class: 'plain' }, ...texts.map((text) => h('li', {}, text))) : null;
  const at = nextTrySeconds === null ? null : new Date(Date.now() + 1000 * nextTrySeconds);
  return definitions([
    ['Attempts', attempts > 0 ? number(attempts) : null],
    ['Next Attempt', at && `at ${instant(at.toISOString())}, or after a change`],
    ['To Make It Fit', list(suggestions)],
    ['Not Considered', list(notConsidered)],
  ]);
}

class ExplanationPanel {
  element = h('div', {});
  #context;
  #path;
  #decision = h('p', {});
  #facts = h('div', {});
  /** Reads again when the scheduler has tried again. @type {number | undefined} */ #timer;
  #table = new DataTable(
    /** @type {import('./table.js').TableOptions<Explanation['nodes'][number]>} */ ({
      caption: 'Nodes as the scheduler sees them for this pod',
      columns: [
        {
          title: 'Node',
          value: ({ name }) => name,
          show: ({ name }) => h('a', { href: nodeLink(name) }, name),
        },
        { title: 'Feasible', value: ({ feasible }) => (feasible ? 'yes' : 'no') },
        { title: 'Reasons', value: ({ reasons }) => reasons.join('; ') },
        {
          title: 'Total',
          value: ({ total }) => total ?? -1,
          show: ({ total }) => String(total ?? '–'),
          isNumeric: true,
        },
        {
          title: 'Scores',
          value: ({ scores }) =>
            Object.entries(scores ?? {})
              .map(([plugin, score]) => `${plugin} ${score}`)
              .join(', '),
        },
      ],
      key: ({ name }) => name,
      empty: 'The scheduler knows no node.',
      sortedBy: 3,
      isDescending: true,
    }),
  );

  /**
   * @param {Context} context
   * @param {string} path
   */
  constructor(context, path) {
    this.#context = context;
    this.#path = path;
    context.end.addEventListener('abort', () => clearTimeout(this.#timer), { once: true });
  }

  async read() {
    const { api, end, knowsMachine } = this.#context;
    if (!knowsMachine) return;
    clearTimeout(this.#timer);
    try {
      /** @type {Explanation} */
      const found = await api.json(this.#path, end);
      this.#decision.textContent = found.decision;
      const { attempts, nextTrySeconds: next, suggestions, notConsidered } = found;
      const given = [attempts, next, suggestions, notConsidered];
      if (isChanged(this.#facts, given)) replace(this.#facts, attemptFacts(found));
      if (next !== null && !end.aborted) {
        this.#timer = setTimeout(() => void this.read(), 1000 * next + AFTER_ATTEMPT);
      }
      this.#table.update(found.nodes);
      if (!this.#table.element.isConnected) {
        const parts = [this.#decision, this.#facts, this.#table.element];
        replace(this.element, foldedSection('Scheduling', ...parts));
      }
    } catch (error) {
      const isAbsent = error instanceof ServerError && error.code === 404;
      if (!isAbort(error) && !isAbsent)
        replace(this.element, section('Scheduling', errorBox(error)));
    }
  }
}
