"""TASPO on the embedded household world: no download, no key. Any instruction-tuned model will do.

python examples/train_household.py --model Qwen/Qwen2.5-0.5B-Instruct
"""

import argparse

from peft import LoraConfig

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.environments import HouseholdEnvironment


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default="Qwen/Qwen2.5-0.5B-Instruct")
    parser.add_argument("--output-dir", default="runs/household")
    parser.add_argument("--max-steps", type=int, default=100)
    options = parser.parse_args()

    trainer = TASPOTrainer(
        model=options.model,
        args=TASPOConfig(
            output_dir=options.output_dir,
            num_generations=8,
            per_device_train_batch_size=8,
            gradient_accumulation_steps=8,
            max_completion_length=256,
            max_steps=options.max_steps,
            learning_rate=1e-5,
            logging_steps=1,
            eval_strategy="steps",
            eval_steps=50,
        ),
        train_dataset=HouseholdEnvironment.dataset("train"),
        eval_dataset=HouseholdEnvironment.dataset("valid_seen"),
        environment_factory=HouseholdEnvironment,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    trainer.train()
    trainer.save_model()
    trainer.end()


if __name__ == "__main__":
    main()
