// The experts of every layer as cells that light up when tokens are routed to them and fade afterwards.
const FADE = 0.93; // of the light that is left after a frame
const DARK = 0.02;
const MOST_CELL = 88; // pixels that a cell is high at most, unless it is wider

export class ExpertMap {
  constructor(canvas, hint) {
    this.canvas = canvas;
    this.hint = hint;
    this.legend = hint.textContent;
    this.context = canvas.getContext("2d");
    this.layers = 0;
    this.experts = 0;
    this.drawing = false;
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.recolour());
    new ResizeObserver(() => this.layout()).observe(canvas.parentElement);
    canvas.addEventListener("pointermove", (event) => this.point(event));
    canvas.addEventListener("pointerleave", () => (hint.textContent = this.legend));
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
    this.most = 1;
    this.layout();
  }

  // As wide and as high as the frame. Cells that would be narrower than a pixel of the screen are drawn as one.
  layout() {
    const { clientWidth: width, clientHeight: height } = this.canvas.parentElement;
    if (!this.layers || !this.experts || !width) return;
    const shown = Math.min(height, this.layers * Math.max(MOST_CELL, width / this.experts));
    this.canvas.style.height = `${shown}px`;
    this.canvas.width = Math.max(this.experts, Math.round(width * devicePixelRatio));
    this.canvas.height = Math.max(this.layers, Math.round(shown * devicePixelRatio));
    this.cellWidth = this.canvas.width / this.experts;
    this.cellHeight = this.canvas.height / this.layers;
    this.wake();
  }

  // counts: how often each expert was chosen since the last report, a row a layer
  add(counts) {
    if (!this.layers) return;
    let lit = 0;
    counts.forEach((row, layer) => {
      const most = row.reduce((found, count) => Math.max(found, count), 1);
      row.forEach((count, expert) => {
        if (!count) return;
        const place = layer * this.experts + expert;
        this.light[place] = Math.max(this.light[place], 0.45 + 0.55 * (count / most));
        this.total[place] += count;
        this.most = Math.max(this.most, this.total[place]);
        lit += 1;
      });
    });
    this.canvas.dataset.lit = lit;
    this.canvas.dataset.used = this.total.reduce((sum, count) => sum + (count > 0), 0);
    if (lit) this.wake();
  }

  point({ offsetX, offsetY }) {
    if (!this.layers) return;
    const expert = Math.floor((offsetX / this.canvas.clientWidth) * this.experts);
    const layer = Math.floor((offsetY / this.canvas.clientHeight) * this.layers);
    const count = this.total[layer * this.experts + expert];
    if (count !== undefined) this.hint.textContent = `Layer ${layer}, expert ${expert}: ${count} tokens since the page was opened.`;
  }

  wake() {
    if (this.drawing || !this.layers) return;
    this.drawing = true;
    requestAnimationFrame(() => this.draw());
  }

  draw() {
    this.drawing = false;
    const { context, experts, cellWidth, cellHeight } = this;
    const gap = cellWidth > 5 && cellHeight > 5 ? Math.ceil(devicePixelRatio) : 0;
    let bright = false;
    context.clearRect(0, 0, this.canvas.width, this.canvas.height);
    for (let place = 0; place < this.light.length; place++) {
      const column = place % experts;
      const row = Math.floor(place / experts);
      const x = Math.round(column * cellWidth);
      const y = Math.round(row * cellHeight);
      const used = this.total[place] ? 0.25 + 0.75 * Math.sqrt(this.total[place] / this.most) : 0;
      context.fillStyle = rgb(mix(mix(this.cold, this.warm, used), this.hot, this.light[place]));
      context.fillRect(x, y, Math.round((column + 1) * cellWidth) - x - gap, Math.round((row + 1) * cellHeight) - y - gap);
      this.light[place] *= FADE;
      if (this.light[place] > DARK) bright = true;
      else this.light[place] = 0;
    }
    if (bright) this.wake();
  }
}

function mix(from, to, share) {
  return from.map((value, index) => value + (to[index] - value) * share);
}

function rgb(parts) {
  return `rgb(${parts.map(Math.round).join(",")})`;
}
