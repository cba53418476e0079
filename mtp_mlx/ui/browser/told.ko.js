// What the server says in English, in Korean: a pattern of the line, and the sentence made of its parts.
const CURES = {
  "get the folder again (git checkout, or mtp-mlx convert)": "폴더를 다시 받으세요(git checkout 또는 mtp-mlx convert)",
  "get the folder again": "폴더를 다시 받으세요",
  "train a head for it (mtp-mlx train), or use --drafter lookup": "그 모델에 맞게 학습하거나(mtp-mlx train) 프롬프트 룩업을 고르세요",
  "train one for it (mtp-mlx train --drafter standalone), or use another --drafter":
    "그 모델에 맞게 학습하거나(mtp-mlx train --drafter standalone) 다른 드래프터를 고르세요",
};
const cured = (cure) => {
  const [, first, rest] = cure.match(/^(get the folder again|give an? .+'s), or (train .+)$/) ?? [null, "", cure];
  const before = first && (first.startsWith("get") ? "폴더를 다시 받거나, " : "다른 폴더를 주거나, ");
  return before + (CURES[rest] ?? rest);
};
const FITTING = { "no phone, only no limit": "제한이 없을 때뿐" };
const TOLD_KO = [
  [/^a part of this run was lost/, () => "이 실행의 일부가 오는 길에 사라졌습니다. 다시 실행하세요"],
  [/^the text is empty/, () => "글이 비어 있습니다. 먼저 글을 쓰세요"],
  [/^the text is not Unicode .* at (\d+)\)/, (at) => `글이 유니코드가 아닙니다(${at}번째에 반쪽 글자). 다시 입력하세요`],
  [/^the text has ([\d,]+) characters/, (count) => `글이 ${count}자라 너무 깁니다. 줄이거나 나누세요`],
  [/^the text is ([\d,]+) tokens long and ([\d,]+)/, (has, most) => `글이 토큰 ${has}개입니다. 최대 ${most}개이니 줄이거나 나누세요`],
  [/^([\d,]+) prompt tokens and ([\d,]+) more pass the model's ([\d,]+)/, (prompt, more, most) =>
    `프롬프트 토큰 ${prompt}개와 더 쓸 ${more}개는 모델의 ${most}개를 넘습니다. 글을 줄이세요`],
  [/^no MTP head is loaded/, () => "MTP 헤드가 없습니다. 학습하거나(mtp-mlx train) 프롬프트 룩업이나 없음을 고르세요"],
  [/^the model's chat template/, () => "모델의 대화 틀이 맞지 않습니다. 폴더를 다시 받으세요"],
  [/^(\S+ \S+) \(.*\) does not fit (.+): (\S+ \S+) over its budget of (\S+ \S+); would fit: (.+)$/,
    (total, device, over, budget, fitting) =>
      `${total}는 ${device}의 예산 ${budget}보다 ${over} 많아 들어가지 않습니다. 들어갈 곳: ${FITTING[fitting] ?? fitting}`],
  [/^(\S+ \S+) in use, (\S+ \S+) over the (\S+ \S+) of (.+)$/, (used, over, budget, device) =>
    `메모리 ${used}를 쓰고 있어 ${device}의 ${budget}보다 ${over} 많습니다`],
  [/^Not one draft token was accepted/, () =>
    "추측이 하나도 수락되지 않았습니다. 글은 맞지만 MTP 헤드가 틀렸습니다. 이 모델에 맞게 학습된 헤드인지 mtp-mlx doctor로 확인하세요."],
  [/^NOT exact on this device: (\d+) of (\d+) logit rows at width (\d+)/, (different, compared, width) =>
    `이 기기에서는 정확하지 않습니다. 너비 ${width}에서 로짓 ${compared}행 중 ${different}행이 자리에 따라 달라, 거의 비긴 곳에서 일반 디코딩과 달라질 수 있습니다. --row-by-row를 쓰면 느리지만 정확합니다`],
  [/^no weights at (.+): (.+)$/, (folder, cure) => `${folder}에 가중치가 없습니다. ${cured(cure)}`],
  [/^no config\.json in (.+): (.+)$/, (folder, cure) => `${folder}에 config.json이 없습니다. ${cured(cure)}`],
  [/^(\S+) is missing from (.+): (.+)$/, (name, folder, cure) => `${folder}에 ${name} 파일이 없습니다. ${cured(cure)}`],
  [/^(.+) is damaged \(.*\): (.+)$/, (path, cure) => `${path} 파일이 손상되었습니다. ${cured(cure)}`],
  [/^the weights in (.+) are damaged/, (folder) => `${folder}의 가중치가 손상되었습니다. 폴더를 다시 받으세요`],
  [/^(.+) cannot be loaded \(.*\): (.+)$/, (path, cure) => `${path} 폴더를 불러올 수 없습니다. ${cured(cure)}`],
  [/^(.+) is not a readable .*: (.+)$/, (folder, cure) => `${folder} 폴더를 읽을 수 없습니다. ${cured(cure)}`],
  [/^(.+) holds (?:.+) \(what (\S+) is for\), not (?:.+?): (.+)$/, (folder, option, cure) =>
    `${folder} 폴더에는 ${option} 자리에 올 것이 있습니다. ${cured(cure)}`],
  [/^(.+) (?:names layers that|drafts in another|was trained on another) .*: (.+)$/, (folder, cure) =>
    `${folder}의 것은 이 모델에 맞지 않습니다. ${cured(cure)}`],
];
