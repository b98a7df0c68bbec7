// Makes thumbnails until SIGTERM or Ctrl-C: node worker.js
// @ts-check
import { readFile, writeFile } from "node:fs/promises";
import { Client, FatalError, jsonTask } from "howdah";
import sharp from "sharp";

/** @typedef {{ source: string, target: string, width: number }} Thumbnail */
const makeThumbnail = /** @type {import("howdah").Task<Thumbnail>} */ (jsonTask("thumbnail.make"));

const client = await Client.connect();
const worker = client.worker({ concurrency: 4 });

worker.handle(makeThumbnail, async ({ source, target, width }, job) => {
  // An earlier attempt made the thumbnail, but its ack was lost.
  const made = job.checkpointJson();
  if (made) return made;

  const file = await readFile(source); // a missing file may still appear, so the job is retried
  const image = await sharp(file).raw().toBuffer({ resolveWithObject: true }).catch(notAnImage);
  await job.progress(0.5, "decoded");

  const { width: w, height: h, channels } = image.info;
  const small = sharp(image.data, { raw: { width: w, height: h, channels } }).resize({ width });
  const thumbnail = await small.png().toBuffer({ resolveWithObject: true });
  job.signal.throwIfAborted();
  await writeFile(target, thumbnail.data);
  const result = { width: thumbnail.info.width, height: thumbnail.info.height };
  await job.saveCheckpoint(result);
  return result;
});

/** @returns {never} */
function notAnImage(/** @type {Error} */ error) {
  throw new FatalError(error.message, { cause: error });
}

await worker.run({ stopOn: ["SIGTERM", "SIGINT"] });
await client.close();
