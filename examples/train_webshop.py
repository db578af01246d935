"""TASPO on WebShop, without Java: LoRA on one GPU, or a smoke run anywhere with the embedded catalogue.

    python examples/train_webshop.py --catalogue data/items_shuffle_1000.json
    python examples/train_webshop.py --num-goals 6 --model HuggingFaceTB/SmolLM2-135M-Instruct \\
        --max-steps 1 --tasks-per-step 1 --num-generations 4 --max-turns 5 --max-completion-length 32   # a laptop
"""

import argparse
from functools import partial

from peft import LoraConfig

from taspo_trl import TASPOConfig, TASPOTrainer
from taspo_trl.environments import WebShopEnvironment


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="Qwen/Qwen2.5-1.5B-Instruct")
    parser.add_argument(
        "--catalogue", default="embedded", help="products file, its folder, a built folder, or `embedded`"
    )
    parser.add_argument("--num-goals", type=int, help="goals of each split (default: all, 128 for the test)")
    parser.add_argument("--analyzer", help="LiteLLM's name of the analyzer's model; embedded analyzer without")
    parser.add_argument("--output-dir", default="runs/webshop")
    parser.add_argument("--max-steps", type=int, default=150)
    parser.add_argument("--tasks-per-step", type=int, default=4)
    parser.add_argument("--num-generations", type=int, default=8)
    parser.add_argument("--max-turns", type=int, default=15, help="turns of an episode")
    parser.add_argument("--max-completion-length", type=int, default=512, help="tokens of one reply")
    options = parser.parse_args(arguments)

    train = WebShopEnvironment.dataset("train", catalogue=options.catalogue, limit=options.num_goals)
    test = WebShopEnvironment.dataset("test_128", catalogue=options.catalogue, limit=options.num_goals)
    environment = partial(WebShopEnvironment, catalogue=options.catalogue)

    trainer = TASPOTrainer(
        model=options.model,
        args=TASPOConfig(
            output_dir=options.output_dir,
            num_generations=options.num_generations,
            per_device_train_batch_size=options.num_generations,
            gradient_accumulation_steps=options.tasks_per_step,
            max_turns=options.max_turns,
            max_prompt_length=4096,
            max_completion_length=options.max_completion_length,
            max_steps=options.max_steps,
            learning_rate=1e-5,
            beta=0.01,
            entropy_coef=0.001,
            analyzer_model=options.analyzer,
            logging_steps=1,
            save_steps=50,
            report_to="none",
        ),
        train_dataset=train,
        eval_dataset=test,
        environment_factory=environment,
        peft_config=LoraConfig(r=16, lora_alpha=32, target_modules="all-linear"),
    )
    try:
        trainer.train()
        trainer.save_model()
        for name, value in trainer.evaluate().items():
            print(f"{name:<40} {value:.4g}")
    finally:
        trainer.end()


if __name__ == "__main__":
    main()
