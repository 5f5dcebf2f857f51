// Tokens a second over the last minute.
const KEPT = 300;

export class Graph {
  constructor(canvas) {
    this.canvas = canvas;
    this.values = [];
  }

  add(value) {
    this.values.push(value);
    if (this.values.length > KEPT) this.values.shift();
    const { canvas } = this;
    const scale = devicePixelRatio;
    canvas.width = canvas.clientWidth * scale;
    canvas.height = canvas.clientHeight * scale;
    const context = canvas.getContext("2d");
    const style = getComputedStyle(document.documentElement);
    const most = Math.max(1, ...this.values);
    const step = canvas.width / KEPT;
    const start = canvas.width - this.values.length * step;
    context.beginPath();
    context.moveTo(start, canvas.height);
    this.values.forEach((each, index) => context.lineTo(start + index * step, canvas.height - (each / most) * (canvas.height - 4)));
    context.lineTo(canvas.width, canvas.height);
    context.fillStyle = style.getPropertyValue("--accent");
    context.globalAlpha = 0.25;
    context.fill();
    context.globalAlpha = 1;
    context.strokeStyle = style.getPropertyValue("--accent");
    context.lineWidth = scale;
    context.stroke();
  }
}
