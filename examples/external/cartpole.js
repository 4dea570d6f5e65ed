// Play CartPole at the endpoint of a run, which learns from it: `tamiyo train --env external --spaces spaces.json` with
// {"observation_size": 4, "actions": [2]}, or 2 instead of 4 with hidden velocities.
//
// npm install @grpc/grpc-js @grpc/proto-loader
// node cartpole.js PROTO_FOLDER ADDRESS EPISODES [--hide-velocities]
const crypto = require("crypto");
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [folder, address, episodes] = [process.argv[2], process.argv[3], Number(process.argv[4])];
const hidden = process.argv.includes("--hide-velocities");
const definition = loader.loadSync("actors/wire/policy.proto", { includeDirs: [folder], keepCase: true, enums: String });
const { PolicyService } = grpc.loadPackageDefinition(definition).tamiyo.v1;
const client = new PolicyService(address, grpc.credentials.createInsecure());
const TRANSIENT = [grpc.status.UNAVAILABLE, grpc.status.RESOURCE_EXHAUSTED, grpc.status.DEADLINE_EXCEEDED,
  grpc.status.CANCELLED];
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));

// Requests can be repeated: the server takes each step, and each reward, once.
async function call(method, request) {
  for (let attempt = 0; ; attempt++) {
    try {
      return await new Promise((resolve, reject) =>
        client[method](request, { deadline: Date.now() + 10000 }, (error, response) =>
          error ? reject(error) : resolve(response),
        ),
      );
    } catch (error) {
      if (!TRANSIENT.includes(error.code) || attempt > 200) throw error;
      await sleep(250);
    }
  }
}

const float32 = (values) => {
  const data = Buffer.alloc(4 * values.length);
  values.forEach((value, i) => data.writeFloatLE(value, 4 * i));
  return { dtype: "DTYPE_FLOAT32", shape: [values.length], data };
};
const bothLegal = { dtype: "DTYPE_BITS", shape: [2], data: Buffer.from([0b11000000]) };

class CartPole {
  constructor() {
    this.state = Array.from({ length: 4 }, () => Math.random() * 0.1 - 0.05);
    this.steps = 0;
  }

  observation() {
    const [x, , theta] = this.state;
    return float32(hidden ? [x, theta] : this.state);
  }

  step(action) {
    let [x, xDot, theta, thetaDot] = this.state;
    const [cos, sin] = [Math.cos(theta), Math.sin(theta)];
    const pushed = ((action ? 10 : -10) + 0.05 * thetaDot ** 2 * sin) / 1.1;
    const thetaAcc = (9.8 * sin - cos * pushed) / (0.5 * (4 / 3 - (0.1 * cos ** 2) / 1.1));
    const xAcc = pushed - (0.05 * thetaAcc * cos) / 1.1;
    this.state = [x + 0.02 * xDot, xDot + 0.02 * xAcc, theta + 0.02 * thetaDot, thetaDot + 0.02 * thetaAcc];
    this.steps += 1;
    const fallen = Math.abs(this.state[0]) > 2.4 || Math.abs(this.state[2]) > (12 * 2 * Math.PI) / 360;
    return { reward: 1, terminated: fallen, truncated: !fallen && this.steps === 500 };
  }
}

async function play(spaces_hash) {
  const seed = crypto.randomBytes(8).readBigUInt64LE().toString();
  const { session_id } = await call("OpenSession", { spaces_hash, seed, train: true });
  const env = new CartPole();
  let result = {};
  for (let step_index = 0; ; step_index++) {
    const request = { session_id, step_index, obs: env.observation(), mask: bothLegal };
    if (step_index > 0) request.reward = result.reward;
    const { action } = await call("Step", request);
    result = env.step(action[0]);
    if (result.terminated || result.truncated) {
      const end = { session_id, step_index: step_index + 1, ...result, obs: env.observation(), mask: bothLegal };
      const summary = await call("EndEpisode", end);
      await call("CloseSession", { session_id });
      return summary;
    }
  }
}

(async () => {
  const model = await call("GetModel", {});
  let lost = 0;
  for (let episode = 0; episode < episodes; ) {
    try {
      const summary = await play(model.accepted[0].spaces_hash);
      episode += 1;
      console.log(JSON.stringify({ episode, return: summary.episode_return, steps: Number(summary.steps), lost }));
    } catch (error) {
      if (error.code !== grpc.status.NOT_FOUND) throw error;
      lost += 1; // the server was restarted, and this episode with it
    }
  }
  client.close();
})();
