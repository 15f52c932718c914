// specviz.Seeded in the browser, bit for bit: u = hash(seed, row, round, stream, slot), nested SplitMix64 generators.
// Sample n is the first round of row n. 64 bits are two halves of 32, since BigInt takes ten times as long.

// The high 32 bits of the product of two numbers of 32 bits.
function highProduct(a, b) {
  const [a0, a1, b0, b1] = [a & 0xffff, a >>> 16, b & 0xffff, b >>> 16];
  const middle = a1 * b0 + ((a0 * b0) >>> 16);
  const other = a0 * b1 + (middle & 0xffff);
  return (a1 * b1 + Math.floor(middle / 65536) + Math.floor(other / 65536)) >>> 0;
}

// A number of 64 bits, changed in place: no allocation in the inner loop.
export class Word {
  set(high, low) {
    this.high = high >>> 0;
    this.low = low >>> 0;
    return this;
  }

  add(high, low) {
    const sum = this.low + low;
    return this.set(this.high + high + (sum > 0xffffffff ? 1 : 0), sum);
  }

  times(high, low) {
    const top = highProduct(this.low, low) + Math.imul(this.low, high) + Math.imul(this.high, low);
    return this.set(top, Math.imul(this.low, low));
  }

  // this ^= this >>> bits, for bits below 32
  fold(bits) {
    return this.set(this.high ^ (this.high >>> bits), this.low ^ ((this.high << (32 - bits)) | (this.low >>> bits)));
  }
}

const product = new Word();

// word := output number n of the SplitMix64 generator that is seeded with word.
export function splitmix64(word, n) {
  product.set(Math.floor((n + 1) / 2 ** 32), n + 1).times(0x9e3779b9, 0x7f4a7c15);
  word.add(product.high, product.low);
  word.fold(30).times(0xbf58476d, 0x1ce4e5b9);
  return word.fold(27).times(0x94d049bb, 0x133111eb).fold(31);
}

const uniformOf = (word) => (word.high * 2 ** 21 + (word.low >>> 11)) * 2 ** -53;

const STREAMS = { draft: 0, coin: 1, next: 2 };
const sampled = new Word();
const drawn = new Word();

// The three uniforms of sample n, in [0, 1).
export function uniforms(seed, n) {
  splitmix64(sampled.set(Math.floor(seed / 2 ** 32), seed), n); // the row
  splitmix64(sampled, 0); // its first round
  const of = (stream) => uniformOf(splitmix64(splitmix64(drawn.set(sampled.high, sampled.low), stream), 0));
  return { draft: of(STREAMS.draft), coin: of(STREAMS.coin), next: of(STREAMS.next) };
}
