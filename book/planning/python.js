/* What the planner's Python needs of Python, for `book/_ext/to_javascript.py`, which puts this before what it translates.
   Numbers are doubles in both languages. A list or tuple is an array, a set a Set of numbers or strings, a dictionary a
   `Dict`, None is null. */

class ValueError extends Error {}

/** A key of a dictionary as a text: tuples are equal if their parts are. */
const $key = (key) => (Array.isArray(key) ? `(${key.map($key).join()})` : String(key));

/** A dictionary, in the order in which its keys came. */
class Dict {
  constructor(pairs) {
    this.pairs = new Map();
    for (const [key, value] of pairs) this.set(key, value);
  }
  set(key, value) { this.pairs.set($key(key), [key, value]); }
  has(key) { return this.pairs.has($key(key)); }
  get(key, otherwise = null) { return this.pairs.get($key(key))?.[1] ?? otherwise; }
  setdefault(key, value) {
    if (!this.has(key)) this.set(key, value);
    return this.get(key);
  }
  items() { return [...this.pairs.values()]; }
  keys() { return this.items().map(([key]) => key); }
  values() { return this.items().map(([, value]) => value); }
  [Symbol.iterator]() { return this.keys()[Symbol.iterator](); }
  get length() { return this.pairs.size; }
}

/** The base of dataclasses. */
class Data {
  static from(fields) { return new this(...this.fields.map((name) => fields[name])); }
}
const replace = (data, changes) => Object.assign(Object.create(Object.getPrototypeOf(data)), data, changes);

const $true = (x) => (x === null || x === undefined ? false : typeof x === "object" && "length" in x ? x.length > 0 : x instanceof Set ? x.size > 0 : Boolean(x));
const $equal = (a, b) => {
  if (a === b) return true;
  if (Array.isArray(a) && Array.isArray(b)) return a.length === b.length && a.every((x, i) => $equal(x, b[i]));
  return a instanceof Data && b instanceof Data && a.constructor === b.constructor && a.constructor.fields.every((name) => $equal(a[name], b[name]));
};
const $in = (x, many) => (many instanceof Dict || many instanceof Set ? many.has(x) : many.includes(x));
const $at = (many, key) => {
  if (!(many instanceof Dict)) return many.at(key);
  if (!many.has(key)) throw new Error(`no key ${key}`);
  return many.get(key);
};
const $put = (many, key, value) => (many instanceof Dict ? many.set(key, value) : (many[key] = value));
const $add = (a, b) => (Array.isArray(a) ? [...a, ...b] : a + b);
const $mod = (a, b) => ((a % b) + b) % b;
/** Less than 0 if a comes before b, 0 if they are equal. */
const $compare = (a, b) => {
  if (!Array.isArray(a)) return a < b ? -1 : a > b ? 1 : 0;
  for (let i = 0; i < a.length && i < b.length; i += 1) {
    const order = $compare(a[i], b[i]);
    if (order) return order;
  }
  return a.length - b.length;
};
const $first = (sign, many, key) => many.reduce((best, x) => (sign * $compare(key(x), key(best)) < 0 ? x : best));
const $same = (x) => x;
const min = (many, key = $same) => $first(1, [...many], key);
const max = (many, key = $same) => $first(-1, [...many], key);
const sorted = (many, key = $same) => [...many].sort((a, b) => $compare(key(a), key(b)));
const sum = (many) => {
  let total = 0;
  for (const x of many) total += Number(x);
  return total;
};
const any = (many) => [...many].some($true);
const all = (many) => [...many].every($true);
const len = (many) => many.length ?? many.size;
const range = (a, b) => Array.from({ length: Math.max(0, b === undefined ? a : b - a) }, (_, i) => (b === undefined ? i : a + i));
const enumerate = (many) => [...many].map((x, i) => [i, x]);
const list = (many) => [...many];
const tuple = list;
const str = String;
const bool = $true;
const $bitLength = (n) => (n < 1 ? 0 : n.toString(2).length);
const round = (x) => {
  const low = Math.floor(x);
  return x - low > 0.5 || (x - low === 0.5 && low % 2) ? low + 1 : low;
};
const $text = (x) => (x === null ? "None" : x === true ? "True" : x === false ? "False" : Number.isFinite(x) ? String(x) : x.__str__ ? x.__str__() : String(x));
const $repr = (x) => (typeof x === "string" ? `'${x}'` : $text(x));
const math = { sqrt: Math.sqrt, ceil: Math.ceil, floor: Math.floor, log2: Math.log2, inf: Infinity };
const itertools = {
  product: (...many) => many.reduce((found, x) => found.flatMap((before) => [...x].map((y) => [...before, y])), [[]]),
  combinations: (many, n) => (n ? [...many].flatMap((x, i) => itertools.combinations(many.slice(i + 1), n - 1).map((rest) => [x, ...rest])) : [[]]),
};
/** A function of one object that remembers what it gave. */
const $cached = (compute) => {
  const known = new WeakMap();
  return (x) => {
    if (!known.has(x)) known.set(x, compute(x));
    return known.get(x);
  };
};
