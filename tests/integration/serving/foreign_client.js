// Open a session and step it, using the .proto files only. Arguments: proto folder, address, steps as JSON.
const grpc = require("@grpc/grpc-js");
const loader = require("@grpc/proto-loader");

const [folder, address, steps] = [process.argv[2], process.argv[3], JSON.parse(process.argv[4])];
const definition = loader.loadSync("actors/wire/policy.proto", {
  includeDirs: [folder],
  keepCase: true,
  longs: Number,
  enums: String,
});
const { PolicyService } = grpc.loadPackageDefinition(definition).tamiyo.v1;
const client = new PolicyService(address, grpc.credentials.createInsecure());
const call = (method, request) =>
  new Promise((resolve, reject) =>
    client[method](request, (error, response) => (error ? reject(error) : resolve(response))),
  );
const array = ({ dtype, shape, data }) => ({ dtype, shape, data: Buffer.from(data, "base64") });
const request = (session_id, step_index) => {
  const message = { session_id, step_index };
  for (const [name, value] of Object.entries(steps[step_index])) message[name] = array(value);
  return message;
};

(async () => {
  const model = await call("GetModel", {});
  const report = { heads: model.heads.map((h) => h.name), answers: [], streamed: [] };
  const spaces_hash = model.accepted.find((a) => a.slots === 2).spaces_hash;
  let session = (await call("OpenSession", { spaces_hash })).session_id;
  for (let i = 0; i < steps.length; i++) report.answers.push((await call("Step", request(session, i))).action);
  try {
    await call("Step", request(session, 0));
  } catch (error) {
    report.refused = { code: grpc.status[error.code], details: error.metadata.get("grpc-status-details-bin").length };
  }
  session = (await call("OpenSession", { spaces_hash })).session_id;
  const stream = client.StepStream();
  const ended = new Promise((resolve, reject) => stream.on("end", resolve).on("error", reject));
  const next = () => {
    const i = report.streamed.length;
    if (i < steps.length) stream.write({ step: request(session, i) });
    else stream.end();
  };
  stream.on("data", (response) => {
    report.streamed.push(response.step.action);
    next();
  });
  next();
  await ended;
  await call("CloseSession", { session_id: session });
  console.log(JSON.stringify(report));
  client.close();
})();
