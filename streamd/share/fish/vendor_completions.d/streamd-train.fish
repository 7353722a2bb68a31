# Completion of streamd-train for fish. Written by scripts/manual, from the commands themselves.
function _streamd_train_at --argument-names wanted at --description 'whether that command is typed, up to that place'
    set --local command ''
    set --local place 0
    set --local before ''
    for word in (commandline --tokenize --current-process --cut-at-cursor)[2..]
        if test -n "$before"
            set before ''
            continue
        end
        switch $word
            case --batch-size --callback --class-weight --endpoint --epochs --label --learning-rate --model --name --optimizer --patience --receipts --resume --save --seed --stream --together --validation
                set before $word
            case '-*'
            case '*'
                if contains -- "$command $word" ''
                    set command "$command $word"
                    set place 0
                else
                    set place (math $place + 1)
                end
        end
    end
    test "$command" = "$wanted"; and test "$at" = '' -o "$at" = $place
end

function _streamd_train_streams
    set --local program (string replace --regex '^~/' $HOME/ (commandline --tokenize --current-process)[1])
    set program (string replace --regex -- '-train$' '' $program)
    $program streams (commandline --cut-at-cursor | string collect) 2>/dev/null
end

complete --command streamd-train --no-files
complete --command streamd-train --condition "_streamd_train_at ''" --long-option stream --exclusive --arguments '(_streamd_train_streams)' --description 'The stream to train on'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option epochs --exclusive --description 'Epochs to train'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option save --require-parameter --force-files --description 'Where the trained model goes, a .keras file'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option validation --exclusive --arguments '(_streamd_train_streams)' --description 'A stream to evaluate after each epoch'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option endpoint --exclusive --description 'The daemon; default $STREAMD_ENDPOINT, then this host\'s'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option label --exclusive --description 'The label to learn, where the stream has several'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option model --exclusive --description 'Your function: takes the StreamSpec, returns a keras.Model'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option callback --exclusive --description 'Your own: a keras Callback class, or a function that takes the StreamSpec and returns a callback; may be given several times'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option optimizer --exclusive --description 'One of Keras\'s, such as sgd or adamw; default adam'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option learning-rate --exclusive --description 'Of the optimizer; default what Keras gives it'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option mixed-precision --description 'Compute in 16 bits: float16 on a GPU; bfloat16 on a processor, where few gain by it'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option batch-size --exclusive --description 'Samples a training step: a divisor or a multiple of the stream\'s; default the stream\'s. Validation keeps that of its own stream, on which its results do not depend'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option class-weight --exclusive --arguments 'balanced' --description 'Weigh each sample by how rare its class is; validation does not'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option seed --exclusive --description 'Seeds the initial weights, for a repeatable run'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option together --exclusive --description 'Begin when K trainers have subscribed to the stream'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option resume --exclusive --arguments '(__fish_complete_directories)' --description 'Save there after each epoch, and go on from there'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option receipts --require-parameter --force-files --description 'Also write the receipts there, a JSON list'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option name --exclusive --description 'What streamd status calls this training; default by --save'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option patience --exclusive --description 'How long the daemon may be away; default for ever'
complete --command streamd-train --condition "_streamd_train_at ''" --long-option help --description 'Show this message and exit'
