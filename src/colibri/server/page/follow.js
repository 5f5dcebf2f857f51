// Keeps the end of a scrolled box in view while what is in it grows, unless the reader has scrolled up.
const NEAR = 40;

export function follow(box, content) {
  let following = true;
  let last = 0;
  box.addEventListener("scroll", () => {
    if (box.scrollHeight - box.scrollTop - box.clientHeight < NEAR) following = true;
    else if (box.scrollTop < last) following = false;
    last = box.scrollTop;
  });
  const toEnd = () => {
    if (!following) return;
    box.scrollTop = box.scrollHeight;
    last = box.scrollTop;
  };
  const observer = new ResizeObserver(toEnd);
  observer.observe(box);
  observer.observe(content);
  return () => { // wherever the reader is
    following = true;
    toEnd();
  };
}
