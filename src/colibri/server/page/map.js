// The experts of every layer as cells that light up when tokens are routed to them and fade afterwards.
const FADE = 0.93; // of the light that is left after a frame
const DARK = 0.02;
const MOST_HEIGHT = 560;

export class ExpertMap {
  constructor(canvas) {
    this.canvas = canvas;
    this.context = canvas.getContext("2d");
    this.layers = 0;
    this.experts = 0;
    this.drawing = false;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    new ResizeObserver(() => this.layout()).observe(canvas.parentElement);
    this.recolour();
  }

  recolour() {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => {
      const hex = style.getPropertyValue(name).trim();
      return [1, 3, 5].map((start) => parseInt(hex.slice(start, start + 2), 16));
    };
    this.cold = colour("--cold");
    this.warm = colour("--warm");
    this.hot = colour("--hot");
    this.wake();
  }

  resize(layers, experts) {
    this.layers = layers;
    this.experts = experts;
    this.light = new Float32Array(layers * experts);
    this.total = new Float64Array(layers * experts);
    this.layout();
  }

  layout() {
    if (!this.layers) return;
    const width = this.canvas.parentElement.clientWidth;
    const cell = Math.max(1, Math.min(28, width / this.experts, MOST_HEIGHT / this.layers));
    const scale = devicePixelRatio;
    this.cellWidth = Math.min(width / this.experts, cell * 2.5) * scale;
    this.cellHeight = cell * scale;
    this.canvas.width = Math.round(this.cellWidth * this.experts);
    this.canvas.height = Math.round(this.cellHeight * this.layers);
    this.canvas.style.width = `${this.canvas.width / scale}px`;
    this.canvas.style.height = `${this.canvas.height / scale}px`;
    this.wake();
  }

  // counts: how often each expert was chosen since the last report, a row a layer
  add(counts) {
    if (!this.layers) return;
    let lit = 0;
    counts.forEach((row, layer) => {
      const most = Math.max(1, ...row);
      row.forEach((count, expert) => {
        if (!count) return;
        const place = layer * this.experts + expert;
        this.light[place] = Math.max(this.light[place], 0.45 + 0.55 * (count / most));
        this.total[place] += count;
        lit += 1;
      });
    });
    this.canvas.dataset.lit = lit;
    this.canvas.dataset.used = this.total.reduce((sum, count) => sum + (count > 0), 0);
    if (lit) this.wake();
  }

  wake() {
    if (this.drawing || !this.layers) return;
    this.drawing = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.drawing = false;
    const { context, experts, cellWidth, cellHeight } = this;
    const gap = cellWidth > 5 && cellHeight > 5 ? 1 : 0;
    const most = Math.max(1, ...this.total);
    let bright = false;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let place = 0; place < this.light.length; place++) {
      const column = place % experts;
      const row = Math.floor(place / experts);
      const x = Math.round(column * cellWidth);
      const y = Math.round(row * cellHeight);
      const used = this.total[place] ? 0.25 + 0.75 * Math.sqrt(this.total[place] / most) : 0;
      context.fillStyle = mix(mix(this.cold, this.warm, used), this.hot, this.light[place]);
      context.fillRect(x, y, Math.round((column + 1) * cellWidth) - x - gap, Math.round((row + 1) * cellHeight) - y - gap);
      this.light[place] *= FADE;
      if (this.light[place] > DARK) bright = true;
      else this.light[place] = 0;
    }
    if (bright) this.wake();
  }
}

function mix(from, to, share) {
  const parts = Array.isArray(from) ? from : from.match(/\d+/g).map(Number);
  return `rgb(${parts.map((value, index) => Math.round(value + (to[index] - value) * share)).join(",")})`;
}
