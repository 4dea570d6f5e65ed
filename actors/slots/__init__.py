"""The slots of one model: `stage`, `lifecycle` (legal actions and what they do), `growth_state` (everything together),
`contributions`, and `observation`, which the policy sees."""
