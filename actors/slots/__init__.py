"""The slots of one model: stages, legal actions, contributions, and the observation of the policy.

Read `stage.py` (the stages and their transitions), `lifecycle.py` (legal actions and what they do) and
`growth_state.py` (everything together), then `contributions.py` and `observation.py`.
"""
